"""Configs that clients describe and alter: of topics, groups and brokers."""
