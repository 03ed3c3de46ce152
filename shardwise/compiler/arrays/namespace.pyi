# What `NamespaceMethods` is once the methods are attached. A stub, because code of this layer must not import that one.
from shardwise.numpy.array_methods import ArrayMethods

NamespaceMethods = ArrayMethods
