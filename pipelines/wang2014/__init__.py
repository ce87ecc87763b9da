"""The experiments of Wang, Wonka and Ye (2014): DVI for SVM and LAD."""
