"""scikit-learn's estimator checks that require more than a relative gap proves."""

SQUARE_ROOT = (
    "compares decision values to 1e-7; a relative gap g determines them to sqrt(2 g P) only: "
    "test_integer_weights_are_repetitions compares what the gap does prove, the objective"
)
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": SQUARE_ROOT,
    "check_sample_weight_equivalence_on_sparse_data": SQUARE_ROOT,
}
