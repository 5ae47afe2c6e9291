package images

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Digest names an image for good: "sha256:" and the 64 hexadecimal digits of
// its manifest's hash, for example
// "sha256:21dc9692fddda3ee3e18c8c0fbdc2bf44ed8a4aea017654bbd2ab68ef38bec51".
// A value from ParseDigest holds nothing that a path would stumble over.
type Digest string

const digestPrefix = "sha256:"

// ParseDigest reads a digest as it is printed: lower case, sha256 only.
func ParseDigest(text string) (Digest, error) {
	digits, found := strings.CutPrefix(text, digestPrefix)
	if !found || len(digits) != 64 || strings.ToLower(digits) != digits {
		return "", fmt.Errorf("parsing image digest %.80q: want sha256: and 64 lower case hexadecimal digits", text)
	}
	if _, err := hex.DecodeString(digits); err != nil {
		return "", fmt.Errorf("parsing image digest %.80q: want sha256: and 64 lower case hexadecimal digits", text)
	}
	return Digest(text), nil
}

// hex returns the digits alone, which is the image's directory name.
func (d Digest) hex() string { return strings.TrimPrefix(string(d), digestPrefix) }

// Image says what is known of one image. It is a copy; changing it changes
// nothing in the store.
type Image struct {
	// Name is the recipe's name, for example "python". Several images can have
	// the same name, one a build that differed; the newest answers to it.
	Name string `json:"name"`
	// Toolchain is what the image is for, in the words of the policies'
	// toolchain detection.
	Toolchain string `json:"toolchain"`
	// Digest is the manifest's, the same for every copy of this image.
	Digest Digest `json:"digest"`
	// Suite is the distribution's code name as it was at build time, for
	// example "trixie": the suite that was asked for ("stable") moves.
	Suite string `json:"suite"`
	// Created is when this host built the image, in UTC. It is not part of the
	// digest, or no two builds would be equal.
	Created time.Time `json:"created"`
	// Bytes is the room that the image takes on disk, layout and root together.
	Bytes int64 `json:"bytes"`
	// Recipe is the hash of the recipe that this host built it by; empty in the
	// records of programs that did not write it down.
	Recipe string `json:"recipe,omitempty"`
	// Tools maps the packages that the recipe names to their versions.
	Tools map[string]string `json:"tools"`
}

// What callers branch on. Everything else is a failure of the host (disk,
// permissions) and has no name here.
var (
	// ErrMissing: no image of that name or digest is in the store.
	ErrMissing = errors.New("image not in the store")
	// ErrUnknownRecipe: Build was asked for a name that Recipes doesn't list.
	ErrUnknownRecipe = errors.New("no recipe of that name")
	// ErrToolMissing: a program or keyring that a build needs isn't installed.
	ErrToolMissing = errors.New("run `make setup`, which installs it")
	// ErrNotRoot: building needs root, for chroot and for the files' owners.
	ErrNotRoot = errors.New("building an image needs root; run the command as root or with sudo")
	// ErrConfinement: the kernel can't confine the process that parses layers.
	ErrConfinement = errors.New("layers are only parsed under Landlock, which this kernel does not offer")
)

// RefusedError is an image whose contents are not accepted: an entry that
// leads out of the root, a device, too much of something, a wrong hash. Nothing
// of it stays in the store.
type RefusedError struct {
	Entry  string // the path inside the image, as written there; may be empty
	Reason string // a clause of ours, lower case
}

// Error quotes the entry, since a stranger chose it.
func (e *RefusedError) Error() string {
	if e.Entry == "" {
		return "image refused: " + e.Reason
	}
	return fmt.Sprintf("image refused: entry %.200q: %s", e.Entry, e.Reason)
}

func refuse(entry, format string, args ...any) error {
	return &RefusedError{Entry: entry, Reason: fmt.Sprintf(format, args...)}
}
