"""What users call on functions: check the arguments, flatten their trees, call the compiler."""
