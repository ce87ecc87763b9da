"""The experiments of Yang et al.: SRBO for nu-SVM and one-class machines."""
