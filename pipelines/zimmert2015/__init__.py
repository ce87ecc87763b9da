"""Screening and working sets as Zimmert et al. (2015) counted them."""
