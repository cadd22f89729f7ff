"""The report page: its data, tables and plots, and the short answer.

May import `reports.analysis`.
"""
