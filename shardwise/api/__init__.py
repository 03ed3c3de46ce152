"""The public transformations: check arguments, flatten pytrees, and call the compiler."""
