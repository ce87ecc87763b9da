"""Parts of the rows, solved by themselves: a start for the whole."""
