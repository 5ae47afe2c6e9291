// Package linux is what the backends of one machine share: sandboxes' disks and
// the pool of them, overlays, collecting and freezing what changed, bookings
// among instances, and reading cgroups and processes back. All of it is for the
// privileged process; nothing here starts a sandbox. It reads no byte that a
// sandbox wrote but names of directory entries. Start reading at Pool for disks,
// at Collect for what leaves, at Group and ReadProcess for what is measured.
package linux
