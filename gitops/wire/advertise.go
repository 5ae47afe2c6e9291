package wire

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

// advert is what a server says first. With version 2 there are only
// capabilities; before it every ref stands there.
type advert struct {
	version int
	caps    map[string]string // name → value, "" without one
	refs    map[string]gitops.ObjectID
	tips    map[gitops.ObjectID]bool // version 0: those of the wanted commits where a ref stands
}

// gives reports whether a server of version 0 lets these commits be fetched.
func (a *advert) gives(ids []gitops.ObjectID) bool {
	if a.has("allow-tip-sha1-in-want", "") || a.has("allow-reachable-sha1-in-want", "") {
		return true
	}
	for _, id := range ids {
		if !a.tips[id] {
			return false
		}
	}
	return true
}

// has reports whether a capability's value lists a word, for example "filter"
// in "fetch=shallow filter".
func (a *advert) has(name, word string) bool {
	value, ok := a.caps[name]
	if word == "" {
		return ok
	}
	for have := range strings.FieldsSeq(value) {
		if have == word {
			return true
		}
	}
	return false
}

// readAdvert reads an advertisement to its end and keeps, of the refs, only
// the wanted names and commits: a repository may have a million.
func readAdvert(r io.Reader, wanted []string, commits []gitops.ObjectID) (*advert, error) {
	p := newPktReader(r, maxAdvertisement)
	a := &advert{caps: map[string]string{}, refs: map[string]gitops.ObjectID{}, tips: map[gitops.ObjectID]bool{}}
	first, err := firstLine(p)
	if err != nil {
		return nil, err
	}
	if first == "version 2" {
		a.version = 2
		return a, a.readCaps(p)
	}
	return a, a.readRefs(p, first, wanted, commits)
}

// firstLine skips the service line and the flush behind it, which some servers
// leave out.
func firstLine(p *pktReader) (string, error) {
	_, b, err := p.next()
	if err != nil {
		return "", noEOF(err)
	}
	if !strings.HasPrefix(string(b), "# service=") {
		return line(b), nil
	}
	kind, b, err := p.next()
	if err == nil && kind == pktFlush {
		_, b, err = p.next()
	}
	return line(b), noEOF(err)
}

func (a *advert) readCaps(p *pktReader) error {
	for {
		kind, b, err := p.next()
		if err != nil {
			return noEOF(err)
		}
		if kind != pktText {
			return nil
		}
		name, value, _ := strings.Cut(line(b), "=")
		a.caps[name] = value
	}
}

var errAdvert = errors.New("broken advertisement")

func (a *advert) readRefs(p *pktReader, first string, wanted []string, commits []gitops.ObjectID) error {
	want := make(map[string]bool, len(wanted))
	for _, name := range wanted {
		want[name] = true
	}
	ref, caps, _ := strings.Cut(first, "\x00")
	for word := range strings.FieldsSeq(caps) {
		name, value, _ := strings.Cut(word, "=")
		a.caps[name] = value
	}
	for {
		if err := a.addRef(ref, want, commits); err != nil {
			return err
		}
		kind, b, err := p.next()
		if err != nil {
			return noEOF(err)
		}
		if kind != pktText {
			return nil
		}
		ref = line(b)
	}
}

// addRef takes "<id> <name>". An empty repository has one line of zeros, and
// names without "refs/" (".have", "capabilities^{}") are none of ours.
func (a *advert) addRef(text string, want map[string]bool, commits []gitops.ObjectID) error {
	if text == "" || strings.HasPrefix(text, "shallow ") {
		return nil
	}
	hex, name, ok := strings.Cut(text, " ")
	id, err := gitops.ParseObjectID(hex)
	switch {
	case len(hex) == 64:
		return errFormat
	case !ok || err != nil:
		return errAdvert
	case strings.HasPrefix(name, "refs/") || name == "HEAD":
		if slices.Contains(commits, id) {
			a.tips[id] = true
		}
		if want[name] {
			a.refs[name] = id
		}
	}
	return nil
}

var errFormat = errors.New("object format is not sha1")

// checkFormat refuses repositories of another object format.
func (a *advert) checkFormat() error {
	if format, ok := a.caps["object-format"]; ok && format != "sha1" {
		return errFormat
	}
	return nil
}
