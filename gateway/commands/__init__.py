"""The commands beside `serve`: each module is one group of them."""
