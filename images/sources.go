package images

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// aptDir is where the host says which mirrors it trusts.
const aptDir = "/etc/apt"

// source is one archive and one suite of it, in the words that apt uses.
type source struct{ uri, suite string }

// mirrors is where a build gets its packages. Empty means the default of
// mmdebstrap. Whatever it says, packages count only with a signature of the
// Debian keyring.
type mirrors []source

// lines returns apt one-line entries.
func (m mirrors) lines() []string {
	var lines []string
	for _, from := range m {
		lines = append(lines, "deb "+from.uri+" "+from.suite+" main")
	}
	return lines
}

// describe names the mirror for a progress line, without a password.
func (m mirrors) describe() string {
	if len(m) == 0 {
		return "from its default mirror"
	}
	parsed, err := url.Parse(m[0].uri)
	if err != nil {
		return "from this host's mirror"
	}
	return "from this host's mirror " + parsed.Redacted()
}

// hostMirrors reads the host's own Debian sources, in both formats. A host that
// isn't Debian has none, nor has one whose Debian sources lack a main suite.
func hostMirrors(dir string) (mirrors, error) {
	paths := []string{filepath.Join(dir, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(dir, "sources.list.d", pattern))
		if err != nil {
			return nil, fmt.Errorf("reading the host's package sources: %w", err)
		}
		paths = append(paths, more...)
	}
	var found mirrors
	for _, path := range paths {
		text, err := readSmall(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the host's package sources: %w", err)
		}
		found = append(found, parseSources(text, strings.HasSuffix(path, ".sources"))...)
	}
	return found.complete(), nil
}

// complete drops doubles; sources without a main suite (only security, say)
// can't make a system and count as none.
func (m mirrors) complete() mirrors {
	var kept mirrors
	for _, from := range m {
		if !slices.Contains(kept, from) {
			kept = append(kept, from)
		}
	}
	hasMain := slices.ContainsFunc(kept, func(from source) bool { return from.suite == suite })
	if !hasMain {
		return nil
	}
	return kept
}

// parseSources reads one file in the deb822 or the one-line format
// (sources.list(5)). What it doesn't understand it leaves out.
func parseSources(text string, deb822 bool) mirrors {
	if !deb822 {
		var found mirrors
		for line := range strings.Lines(text) {
			found = append(found, parseLine(line)...)
		}
		return found
	}
	var found mirrors
	for _, stanza := range stanzas(text) {
		found = append(found, debianSources(stanza)...)
	}
	return found
}

// fields are those of a deb822 stanza, by lower case name.
type fields map[string]string

func stanzas(text string) []fields {
	var all []fields
	current, last := fields{}, ""
	scanner := bufio.NewScanner(strings.NewReader(text))
	for scanner.Scan() {
		line := scanner.Text()
		name, value, found := strings.Cut(line, ":")
		switch {
		case strings.TrimSpace(line) == "":
			all = append(all, current)
			current, last = fields{}, ""
		case line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			current[last] += " " + strings.TrimSpace(line)
		case found:
			last = strings.ToLower(strings.TrimSpace(name))
			current[last] = strings.TrimSpace(value)
		}
	}
	return append(all, current)
}

// parseLine reads "deb [options] uri suite components" as a stanza.
func parseLine(line string) mirrors {
	line, _, _ = strings.Cut(line, "#")
	kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	rest = strings.TrimSpace(rest)
	stanza := fields{"types": kind}
	if options, after, found := strings.Cut(rest, "]"); found && strings.HasPrefix(rest, "[") {
		rest = after
		for _, option := range strings.Fields(strings.TrimPrefix(options, "[")) {
			name, value, _ := strings.Cut(option, "=")
			stanza[strings.ToLower(name)] = value
		}
	}
	words := strings.Fields(rest)
	if len(words) < 3 {
		return nil
	}
	stanza["uris"], stanza["suites"], stanza["components"] = words[0], words[1], strings.Join(words[2:], " ")
	return debianSources(stanza)
}

// debianSources turns a stanza for this host's release into sources for the
// suite of the images: bookworm-security becomes stable-security.
func debianSources(stanza fields) mirrors {
	if !hasWord(stanza["types"], "deb") || !hasWord(stanza["components"], "main") || strings.EqualFold(stanza["enabled"], "no") {
		return nil
	}
	var found mirrors
	for _, uri := range strings.Fields(stanza["uris"]) {
		if !isDebian(uri, stanza["signed-by"]) {
			continue
		}
		for _, name := range strings.Fields(stanza["suites"]) {
			if translated, ok := translate(name); ok {
				found = append(found, source{uri, translated})
			}
		}
	}
	return found
}

func hasWord(text, word string) bool { return slices.Contains(strings.Fields(text), word) }

// isDebian tells Debian's own archive from the many that name their suites like
// it: by the keyring, or, without one, by the path that all its mirrors have.
func isDebian(uri, signedBy string) bool {
	parsed, err := url.Parse(uri)
	if err != nil || !slices.Contains([]string{"http", "https", "mirror+file"}, parsed.Scheme) {
		return false
	}
	if signedBy != "" {
		return strings.Contains(signedBy, "/debian-archive-")
	}
	last := filepath.Base(parsed.Path)
	return last == "debian" || last == "debian-security"
}

// translate maps a suite of any Debian release to the same part of ours.
// Backports, proposed updates and the unreleased are not for images.
func translate(name string) (string, bool) {
	release, part, _ := strings.Cut(name, "-")
	releases := []string{"stable", "oldstable", "oldoldstable", "buster", "bullseye", "bookworm", "trixie", "forky", "duke"}
	if !slices.Contains(releases, release) {
		return "", false
	}
	switch part {
	case "":
		return suite, true
	case "updates", "security":
		return suite + "-" + part, true
	}
	return "", false
}

// aptOptions are the owner's settings for apt that a build needs, too.
type aptOptions struct {
	lines        []string
	ageUnchecked bool
}

// hostAptOptions asks apt for its proxies and for whether package lists may be
// old, which is how hosts with a frozen mirror are set up. Signatures are
// checked in any case.
func hostAptOptions(ctx context.Context) (aptOptions, error) {
	program, err := findProgram("apt-config")
	if errors.Is(err, ErrToolMissing) {
		return aptOptions{}, nil // not a Debian kin: nothing to take over
	}
	command := exec.CommandContext(ctx, program, "dump", "--format", "%f=%v%n", "Acquire")
	command.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	text, err := command.Output()
	if err != nil {
		return aptOptions{}, fmt.Errorf("asking apt for its settings: %w", err)
	}
	return parseAptOptions(string(text)), nil
}

func parseAptOptions(text string) aptOptions {
	var options aptOptions
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if value == "" || strings.ContainsAny(value, "\"\\;{}") {
			continue
		}
		switch name {
		case "Acquire::Check-Valid-Until", "Acquire::Check-Date":
			if value == "false" {
				options.ageUnchecked = true
				options.lines = append(options.lines, name+` "false"`)
			}
		case "Acquire::http::Proxy", "Acquire::https::Proxy":
			options.lines = append(options.lines, name+` "`+value+`"`)
		}
	}
	return options
}
