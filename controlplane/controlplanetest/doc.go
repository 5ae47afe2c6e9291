// Package controlplanetest is a control plane that speaks real HTTP, for tests
// and for the local development plane. It enforces the protocol from its own
// side: it reads every message as plain JSON, without the message types of this
// project, checks signatures and hashes over what it parsed, keeps leases, and
// asks a GitHub for what a result claims. Every answer of it can be lost,
// delayed, broken or repeated (Fault), with or without the effect of the
// request, and its effects are counted (View).
//
// Only tests and veyra-devplane may import it. Start reading at Plane.
package controlplanetest
