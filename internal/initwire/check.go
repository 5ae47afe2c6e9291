package initwire

import (
	"fmt"
	"path"
	"strings"
)

// roots are the places of a sandbox that jobs write to; commands start and
// files are placed below them only (attack case A04).
var roots = []string{"/workspace", "/home/veyra", "/tmp"}

// Inside reports whether p is absolute, clean and equal to or below one of the
// writable places. It says nothing about links on the way.
func Inside(p string) bool {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
		return false
	}
	for _, root := range roots {
		if p == root || strings.HasPrefix(p, root+"/") {
			return true
		}
	}
	return false
}

// Check reports the first rule that c breaks. Both sides ask: the sender for a
// good message, init because it trusts nobody.
func (c Command) Check() error {
	if !Inside(c.Dir) {
		return fmt.Errorf("command directory %q is not a clean path inside the sandbox's own places: %w", c.Dir, ErrFrame)
	}
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return fmt.Errorf("command without a program: %w", ErrFrame)
	}
	for _, arg := range c.Argv {
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("argument %q holds NUL: %w", arg, ErrFrame)
		}
	}
	for _, pair := range c.Env {
		if strings.Index(pair, "=") < 1 || strings.ContainsRune(pair, 0) {
			return fmt.Errorf("environment entry is not NAME=value: %w", ErrFrame)
		}
	}
	if c.Flags&^(Merged|Alone|NoStdin) != 0 {
		return fmt.Errorf("command flags %#x: %w", c.Flags, ErrFrame)
	}
	return nil
}

// Getenv returns the last value of name in env, or "".
func Getenv(env []string, name string) string {
	value := ""
	for _, pair := range env {
		if v, ok := strings.CutPrefix(pair, name+"="); ok {
			value = v
		}
	}
	return value
}

// Exit statuses of init's modes unpack, read and write, which run as ordinary
// commands.
const (
	ModeFailed   = 1 // something went wrong; a line on stderr says what
	ModeUsage    = 2 // the arguments make no sense
	ModeTooLarge = 3 // the file is larger than the caller allowed
	ModeNotFound = 4 // there is no such file
	ModeRefused  = 5 // outside the writable places, or not a regular file
)

// BoundMode makes init write limits of the user namespace that it is started in,
// before a sandbox is: [init, BoundMode, NAME=VALUE…], with names of
// /proc/sys/user. It writes Bounded as a line and ends with its input.
const (
	BoundMode = "bound"
	Bounded   = "bounded"
)
