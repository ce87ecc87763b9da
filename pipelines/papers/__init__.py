"""What the papers' experiments share, their data sets, and one page with all that came out."""
