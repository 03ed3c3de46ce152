"""Explanations for users: plans as text and HTML pages, advice, communication budgets, pictures of shardings."""
