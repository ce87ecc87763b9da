"""The search for parameters: landmarks, gamma and C (or nu), judged by folds of the rows."""
