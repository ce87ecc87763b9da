"""The experiments of Tanji, Della Vecchia, Glineur and Villa (2023): Snacks, and its landmarks."""
