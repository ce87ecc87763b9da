"""Model files as LIBSVM writes them."""

from sklearn.svm import SVC, SVR, OneClassSVM


def as_libsvm(machine, path):
    """A machine of scikit-learn's, which are LIBSVM's, written as svm-train does."""
    coef = machine.dual_coef_
    kinds = {SVC: "c_svc", SVR: "epsilon_svr", OneClassSVM: "one_class"}
    many = hasattr(machine, "classes_") and len(machine.classes_) > 2
    # scikit-learn turns the signs of two classes round.
    sign = -1.0 if hasattr(machine, "classes_") and not many else 1.0
    lines = [
        f"svm_type {kinds[type(machine)]}",
        "kernel_type rbf",
        f"gamma {float(machine._gamma)!r}",
    ]
    lines += [f"nr_class {len(getattr(machine, 'classes_', '12'))}", f"total_sv {coef.shape[1]}"]
    lines.append("rho " + " ".join(repr(float(each)) for each in -sign * machine.intercept_))
    if hasattr(machine, "classes_"):
        lines.append("label " + " ".join(map(str, machine.classes_)))
        lines.append("nr_sv " + " ".join(map(str, machine.n_support_)))
    lines.append("SV")
    for own, row in zip(sign * coef.T, machine.support_vectors_, strict=True):
        entries = " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row.tolist()) if v)
        lines.append(" ".join(repr(float(each)) for each in own) + " " + entries)
    path.write_text("\n".join(lines) + "\n")
    return path
