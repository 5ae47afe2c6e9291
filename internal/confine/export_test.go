package confine

// BuiltWithCgo tells the tests that nothing can be confined in this build.
const BuiltWithCgo = cgoBuild
