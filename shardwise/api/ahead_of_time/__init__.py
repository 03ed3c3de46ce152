"""Functions of programs that need not run: stages of compilation, and abstract evaluation."""
