// Package controlplane is the HTTPS client of the Veyra control plane: one
// method a call, no retries, no state. It pins the paired origin, follows no
// redirect, bounds time and bytes of every answer, and returns what an answer
// means (protocol section 2) together with what it said. When to call and what
// to do about an answer is the supervisor's. Start reading at Client.
package controlplane
