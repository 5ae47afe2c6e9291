package githosttest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// backend runs `git http-backend` by hand: net/http/cgi refuses bodies without
// a length, which git sends above 1 MiB.
func (h *Host) backend(w http.ResponseWriter, r *http.Request, owner, name, rest string, body io.Reader) {
	bare := h.Bare(owner, name)
	cmd := exec.CommandContext(r.Context(), "git", "http-backend")
	cmd.Env = append(Environ(),
		"GIT_PROJECT_ROOT="+filepath.Dir(bare), "GIT_HTTP_EXPORT_ALL=1",
		"PATH_INFO=/"+filepath.Base(bare)+"/"+rest, "QUERY_STRING="+r.URL.RawQuery,
		"REQUEST_METHOD="+r.Method, "CONTENT_TYPE="+r.Header.Get("Content-Type"),
		"REMOTE_USER=x-access-token", "REMOTE_ADDR=127.0.0.1",
		"HTTP_CONTENT_ENCODING="+r.Header.Get("Content-Encoding"),
	)
	if r.ContentLength >= 0 && r.Method == http.MethodPost {
		cmd.Env = append(cmd.Env, "CONTENT_LENGTH="+strconv.FormatInt(r.ContentLength, 10))
	}
	if p := r.Header.Get("Git-Protocol"); p != "" && !h.OldProtocol {
		cmd.Env = append(cmd.Env, "GIT_PROTOCOL="+p)
	}
	cmd.Stdin = body
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		http.Error(w, "git http-backend did not start", http.StatusInternalServerError)
		return
	}
	relay(w, out)
	_ = cmd.Wait()
}

// relay turns a CGI answer into an HTTP answer.
func relay(w http.ResponseWriter, out io.Reader) {
	r := bufio.NewReader(out)
	head, err := textproto.NewReader(r).ReadMIMEHeader()
	if err != nil {
		http.Error(w, "git http-backend gave no header", http.StatusInternalServerError)
		return
	}
	code := http.StatusOK
	if s, _, _ := strings.Cut(head.Get("Status"), " "); s != "" {
		code, _ = strconv.Atoi(s)
	}
	head.Del("Status")
	for k, v := range head {
		w.Header()[k] = v
	}
	w.WriteHeader(code)
	_, _ = io.Copy(w, r)
}

// Environ is the environment for git commands on the host's repositories: no
// configuration of the user or the machine.
func Environ() []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=Author", "GIT_AUTHOR_EMAIL=author@example.org", "GIT_AUTHOR_DATE=1700000000 +0000",
		"GIT_COMMITTER_NAME=Author", "GIT_COMMITTER_EMAIL=author@example.org", "GIT_COMMITTER_DATE=1700000000 +0000",
	}
}

// receive reads the command list of a push and refuses protected refs before
// git sees anything.
func (h *Host) receive(w http.ResponseWriter, r *http.Request, owner, name string) {
	var head bytes.Buffer
	commands, err := readCommands(io.TeeReader(r.Body, &head))
	if err != nil {
		http.Error(w, "broken command list", http.StatusBadRequest)
		return
	}
	for _, c := range commands {
		if h.isProtected(c.ref) {
			_, _ = io.Copy(io.Discard, r.Body)
			declined(w, commands)
			return
		}
	}
	h.backend(w, r, owner, name, "git-receive-pack", io.MultiReader(&head, r.Body))
}

type command struct {
	ref      string
	sideband bool
}

func readCommands(r io.Reader) ([]command, error) {
	var out []command
	for {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(string(head[:]), 16, 16)
		if err != nil || n > 0 && n < 4 {
			return nil, errors.New("broken pkt-line")
		}
		if n == 0 {
			return out, nil
		}
		line := make([]byte, n-4)
		if _, err := io.ReadFull(r, line); err != nil {
			return nil, err
		}
		text, caps, _ := strings.Cut(string(line), "\x00")
		if fields := strings.Fields(text); len(fields) == 3 {
			out = append(out, command{fields[2], strings.Contains(caps, "side-band-64k")})
		}
	}
}

func pkt(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }

func declined(w http.ResponseWriter, commands []command) {
	report := pkt("unpack ok\n")
	for _, c := range commands {
		report += pkt("ng " + c.ref + " protected branch hook declined\n")
	}
	report += "0000"
	if len(commands) > 0 && commands[0].sideband {
		report = pkt("\x02remote: \x1b[31merror\x1b[0m: protected\n") + pkt("\x01"+report) + "0000"
	}
	w.Header().Set("Content-Type", "application/x-git-receive-pack-result")
	_, _ = io.WriteString(w, report)
}
