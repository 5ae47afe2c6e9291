// Package confine takes power away from our own processes: identity,
// capabilities, new privileges, files (Landlock) and system calls (seccomp). It
// knows nothing of sandboxes, whose confinement is the OCI runtime's work.
//
// Everything here acts on all threads of a Go process, which has several from
// its start, and is read back from the kernel afterwards; a thread that differs
// is an error and the process must not go on. That needs a build without cgo.
// Nothing can be undone. Start reading at Lockdown.
package confine

import "errors"

// ErrNotApplied is wrapped by errors that say that the kernel took a setting
// and yet does not show it on every thread.
var ErrNotApplied = errors.New("confinement is not in force")
