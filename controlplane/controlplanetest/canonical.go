package controlplanetest

import "github.com/veyra-labs/veyra-sandboxd/internal/canonjson"

// canonical is the text that the control plane hashes: it is made of what was
// parsed, never of the bytes that came.
func canonical(v any) ([]byte, error) { return canonjson.Marshal(v) }
