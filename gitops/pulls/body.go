package pulls

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/veyra-labs/veyra-sandboxd/gitops"
)

const (
	maxBody  = 60_000 // characters; the host takes 65,536
	maxTitle = 240    // characters
)

// Validation is one command of the clean room.
type Validation struct {
	Command  string
	ExitCode int
}

// Report is what the body of a pull request says. All texts but Prefix are
// shown as plain text, whatever they hold.
type Report struct {
	// Prefix is the task's own text and comes first, unchanged.
	Prefix       string
	Validation   []Validation
	Commit       gitops.ObjectID
	Tree         gitops.ObjectID
	Policy       string
	PolicySHA256 string
	Image        string // toolchain image by digest
	Summary      string // the model's
}

// Title folds a title to one line of at most 240 characters.
func Title(s string) string { return gitops.OneLine(s, maxTitle) }

// Body writes a report as Markdown of at most 60,000 characters. The summary
// is what gets cut, from its middle; a prefix that leaves no room is
// ErrInvalid.
func Body(r Report) (string, error) {
	head := r.Prefix + "\n\n" + facts(r) + "\n### Summary by the model\n\n"
	room := maxBody - length(head) - 200
	if room < 0 {
		return "", fmt.Errorf("writing pull request: prefix of %d characters: %w", length(r.Prefix), ErrInvalid)
	}
	// Breaking up and fencing lengthen a text, so the cut text is measured.
	for keep := min(room, length(r.Summary)); ; keep = keep * 3 / 4 {
		body := head + fenced(cut(r.Summary, keep))
		if length(body) <= maxBody {
			return body, nil
		}
	}
}

func length(s string) int { return len([]rune(s)) }

func facts(r Report) string {
	var b strings.Builder
	b.WriteString("### Validation in a clean sandbox\n\n")
	var runs strings.Builder
	for _, v := range r.Validation {
		fmt.Fprintf(&runs, "exit %d: %s\n", v.ExitCode, gitops.OneLine(v.Command, 500))
	}
	b.WriteString(fenced(runs.String()))
	b.WriteString("\n| what | id |\n| --- | --- |\n")
	for _, row := range [][2]string{
		{"commit", string(r.Commit)},
		{"tree", string(r.Tree)},
		{"policy", r.Policy},
		{"policy SHA-256", r.PolicySHA256},
		{"image", r.Image},
	} {
		if row[1] != "" {
			fmt.Fprintf(&b, "| %s | `%s` |\n", row[0], cell(row[1]))
		}
	}
	return b.String()
}

// cell keeps what ids and names are made of.
func cell(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_.:/@+", r) {
			return r
		}
		return '_'
	}, s[:min(len(s), 200)])
}

// cut keeps the first third and the last two thirds of limit characters.
func cut(s string, limit int) string {
	runes := []rune(s)
	if len(runes) <= limit {
		return s
	}
	head := limit / 3
	tail := limit - head
	return string(runes[:head]) + "\n[… shortened …]\n" + string(runes[len(runes)-tail:])
}

// fenced puts text into a block that is longer than any run of back-ticks in
// it, with everything broken up that a reader's program could act on.
func fenced(text string) string {
	text = defuse(text)
	longest, run := 2, 0
	for _, r := range text {
		if r == '`' {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	fence := strings.Repeat("`", longest+1)
	return fence + "text\n" + strings.TrimRight(text, "\n") + "\n" + fence + "\n"
}

// gap stands where a mention, a reference, an address or an image is broken.
const gap = "\u200b"

var (
	issueRef = regexp.MustCompile(`(#|(?i:\bgh-))([0-9])`)
	webHost  = regexp.MustCompile(`(?i)\b(www)\.`)
)

// defuse takes control and direction characters out and breaks the rest: a
// fence alone does not keep every program from linking what is inside.
func defuse(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.NewReplacer("@", "@"+gap, "://", ":"+gap+"//", "![", "!"+gap+"[", "](", "]"+gap+"(").Replace(s)
	s = webHost.ReplaceAllString(s, "${1}"+gap+".")
	return issueRef.ReplaceAllString(s, "${1}"+gap+"${2}")
}
