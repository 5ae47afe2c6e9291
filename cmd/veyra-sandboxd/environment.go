package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// variable is a setting's name in the environment.
type variable struct {
	name string
	set  func(s *Settings, value string) error
}

// variables lists every name; the reference runtime's names are among them, so
// that its .env file works as it is. They are applied in this order, whatever
// the order of the environment.
var variables = []variable{
	{"VEYRA_RUNTIME_ROLE", role},
	{"VEYRA_POLICY", text(func(s *Settings) *string { return &s.Policy })},
	{"VEYRA_RUNTIME_STATE_DIR", text(func(s *Settings) *string { return &s.StateDir })},
	{"VEYRA_CACHE_DIR", text(func(s *Settings) *string { return &s.CacheDir })},
	{"VEYRA_CONTROL_PLANE", list(func(s *Settings) *[]string { return &s.ControlPlane.Origins })},
	{"VEYRA_HEARTBEAT_SECONDS", seconds(func(s *Settings) *time.Duration { return &s.ControlPlane.Heartbeat })},
	{"RUNTIME_BIND_HOST", bindHost},
	{"RUNTIME_PORT", bindPort},
	{"RUNTIME_PUBLIC_HOST", text(func(s *Settings) *string { return &s.Public.Host })},
	{"RUNTIME_PUBLIC_PORT", publicPort},
	{"CONNECTION_LINK_TTL_SECONDS", seconds(func(s *Settings) *time.Duration { return &s.Public.LinkTTL })},
	{"VEYRA_TLS_MODE", text(func(s *Settings) *string { return &s.Public.TLS.Mode })},
	{"VEYRA_ADMIN_ADDR", text(func(s *Settings) *string { return &s.Admin.Listen })},
	{"VEYRA_GIT_ORIGINS", list(func(s *Settings) *[]string { return &s.Git.Origins })},
	{"GITHUB_API_URL", text(func(s *Settings) *string { return &s.Git.API })},
	{"AI_PROVIDER", text(func(s *Settings) *string { return &s.shownProvider })},
	{"AI_BASE_URL", text(func(s *Settings) *string { return &s.Provider.BaseURL })},
	{"AI_MODEL", text(func(s *Settings) *string { return &s.Provider.Model })},
	{"AI_API_KEY", apiKey},
	{"AI_API_KEY_FILE", text(func(s *Settings) *string { return &s.Provider.KeyFile })}, // counts before AI_API_KEY
	{"AI_HEALTHCHECK_MODE", healthMode},
	{"VEYRA_MODEL_CONTEXT_CHARACTERS", contextCharacters},
	{"VEYRA_MODEL_TIMEOUT_SECONDS", seconds(func(s *Settings) *time.Duration { return &s.Provider.Timeout })},
	{"VEYRA_SANDBOX_BACKEND", text(func(s *Settings) *string { return &s.Sandbox.Backend })},
	{"VEYRA_SANDBOX_RUNTIME", text(func(s *Settings) *string { return &s.Sandbox.Runtime })},
	{"VEYRA_DOCKER_SOCKET", text(func(s *Settings) *string { return &s.Sandbox.DockerSocket })},
	{"VEYRA_RUNTIME_WORKSPACE_ROOT", func(s *Settings, _ string) error {
		s.note("VEYRA_RUNTIME_WORKSPACE_ROOT is ignored: jobs run in sandboxes with disks of their own")
		return nil
	}},
}

// readEnvironment applies NAME=value pairs, as of os.Environ.
func (s *Settings) readEnvironment(environ []string) error {
	var found []assignment
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		found = append(found, assignment{name, value})
	}
	return s.readNames(found)
}

// readNames applies one layer of names. Empty values count as not set; unknown
// VEYRA_ names are noted once each.
func (s *Settings) readNames(found []assignment) error {
	values := map[string]string{}
	for _, a := range found {
		values[a.name] = a.value
		known := slices.ContainsFunc(variables, func(v variable) bool { return v.name == a.name })
		if known || a.value == "" || !strings.HasPrefix(a.name, "VEYRA_") || s.named[a.name] {
			continue
		}
		s.named[a.name] = true
		s.note("the environment variable %.100q is not known and has no effect", a.name)
	}
	for _, v := range variables {
		value, err := plainValue(values[v.name])
		if err == nil && value == "" {
			continue
		}
		if err == nil {
			err = v.set(s, value)
		}
		if err != nil {
			return fmt.Errorf("%w: %s: %w", errSettings, v.name, err)
		}
		s.named[v.name] = true
	}
	return nil
}

// role is taken in any case, as the reference runtime does.
func role(s *Settings, value string) error {
	s.Role = strings.ToUpper(value)
	return nil
}

// keyPlaceholder stands in the reference runtime's example file.
const keyPlaceholder = "PASTE_OWNER_PAID_KEY_HERE"

// apiKey replaces a key file that was named with less weight.
func apiKey(s *Settings, value string) error {
	if value == keyPlaceholder {
		s.note("AI_API_KEY still holds the example's placeholder and counts as not set")
		return nil
	}
	s.key, s.Provider.KeyFile = value, ""
	return nil
}

func text(field func(*Settings) *string) func(*Settings, string) error {
	return func(s *Settings, value string) error {
		*field(s) = value
		return nil
	}
}

func list(field func(*Settings) *[]string) func(*Settings, string) error {
	return func(s *Settings, value string) error {
		*field(s) = strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	}
}

// seconds takes a number of seconds, as the reference runtime's names say, or a
// duration with its unit.
func seconds(field func(*Settings) *time.Duration) func(*Settings, string) error {
	return func(s *Settings, value string) error {
		if n, err := strconv.ParseFloat(value, 64); err == nil && n > 0 && n < 1e8 {
			*field(s) = time.Duration(n * float64(time.Second))
			return nil
		}
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is no number of seconds", value)
		}
		*field(s) = d
		return nil
	}
}

func bindHost(s *Settings, value string) error {
	_, port, err := net.SplitHostPort(s.Public.Listen)
	if err != nil {
		return err
	}
	s.Public.Listen = net.JoinHostPort(strings.Trim(value, "[]"), port)
	return nil
}

func bindPort(s *Settings, value string) error {
	if err := checkPort(value); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(s.Public.Listen)
	if err != nil {
		return err
	}
	s.Public.Listen = net.JoinHostPort(host, value)
	return nil
}

// publicPort is joined with the host by finishPublic: they may come from
// different places.
func publicPort(s *Settings, value string) error {
	if err := checkPort(value); err != nil {
		return err
	}
	s.publicPort = value
	return nil
}

func checkPort(value string) error {
	if n, err := strconv.Atoi(value); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q is no port", value)
	}
	return nil
}

func healthMode(s *Settings, value string) error {
	switch strings.ToLower(value) {
	case "live":
		s.skipProbe = false
	case "mock":
		s.skipProbe = true
	default:
		return fmt.Errorf("%q is neither live nor mock", value)
	}
	return nil
}

func contextCharacters(s *Settings, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < 4000 || n > 100_000_000 {
		return fmt.Errorf("%q is no number of characters from 4000 up", value)
	}
	s.Provider.ContextCharacters = n
	return nil
}

// finishPublic makes the host that the link names: RUNTIME_PUBLIC_HOST, with
// the public port, else the listener's own.
func (s *Settings) finishPublic() {
	host := s.Public.Host
	if host == "" {
		listen, _, _ := net.SplitHostPort(s.Public.Listen)
		if listen == "" || listen == "0.0.0.0" || listen == "::" {
			listen, _ = os.Hostname()
		}
		host = listen
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		s.Public.Host = host
		return
	}
	port := s.publicPort
	if port == "" {
		_, port, _ = net.SplitHostPort(s.Public.Listen)
	}
	s.Public.Host = net.JoinHostPort(strings.Trim(host, "[]"), port)
	// 80 is where a proxy listens as well; the control plane comes by https.
	if port == "443" || port == "80" {
		s.Public.Host = strings.Trim(host, "[]")
	}
}

const maxKeyBytes = 16 << 10

// readKey takes the provider key from its file or from systemd's credentials,
// before privileges go.
func (s *Settings) readKey() error {
	path := s.Provider.KeyFile
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); path == "" && s.key == "" && dir != "" {
		if candidate := filepath.Join(dir, "ai_api_key"); fileExists(candidate) {
			path = candidate
		}
	}
	if path == "" {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil || len(content) > maxKeyBytes {
		return fmt.Errorf("%w: the key file %s can't be read or is over 16 KiB", errSettings, path)
	}
	s.key = strings.TrimSpace(string(content))
	return nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
