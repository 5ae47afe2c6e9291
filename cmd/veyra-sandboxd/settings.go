package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// Settings is everything an owner can choose, with the defaults of
// defaultSettings. Flags win over the environment, which wins over an env file,
// which wins over the configuration file.
// To add one: a field here with its default, a row in environment.go where it
// has a name there, a line in docs/operating.md, a line in the changelog.
type Settings struct {
	// Role is what this host does: WORKER or VERIFIER.
	Role string `yaml:"role"`
	// Policy is the name of the policy that every sandbox is held to, or the
	// absolute path of an owner's file.
	Policy string `yaml:"policy"`
	// StateDir holds identity, journal and jobs; 0700, one daemon at a time.
	StateDir string `yaml:"state_dir"`
	// CacheDir holds the image store that all instances of a host share.
	CacheDir     string               `yaml:"cache_dir"`
	ControlPlane controlPlaneSettings `yaml:"control_plane"`
	Public       publicSettings       `yaml:"public"`
	Admin        adminSettings        `yaml:"admin"`
	Git          gitSettings          `yaml:"git"`
	Provider     providerSettings     `yaml:"provider"`
	Engine       string               `yaml:"engine"`
	Sandbox      sandboxSettings      `yaml:"sandbox"`
	// Images overrides the image of a toolchain: a name or a digest.
	Images     map[string]string `yaml:"images"`
	Registries map[string]any    `yaml:"registries"`
	Budget     budgetSettings    `yaml:"budget"`
	Keep       keepSettings      `yaml:"keep"`

	// User is who the supervisor becomes; flag only. Empty: an id of its own.
	User string `yaml:"-"`
	// name is the instance's configuration name, for default paths.
	name string
	// publicPort is RUNTIME_PUBLIC_PORT.
	publicPort string
	// key is the provider key, from file, credential or environment.
	key string
	// shownProvider is AI_PROVIDER: free text that is shown.
	shownProvider string
	// skipProbe: the owner says that the provider is ready without asking.
	skipProbe bool
	// envFile is the file of --env-file, if there is one.
	envFile string
	// named holds every name that the environment or an env file has set.
	named map[string]bool
	notes []string
	// policy is what Policy names, once it was read: a file that changes while
	// the daemon starts must not be two policies.
	policy *policies.Policy
}

type controlPlaneSettings struct {
	// Origins are the ones that a claim may name.
	Origins []string `yaml:"origins"`
	// Heartbeat is the interval of beats, never under 2 s.
	Heartbeat time.Duration `yaml:"heartbeat"`
}

type publicSettings struct {
	// Listen is where the control plane's two pairing calls arrive.
	Listen string `yaml:"listen"`
	// Host is what the link says: host or host:port.
	Host    string        `yaml:"host"`
	LinkTTL time.Duration `yaml:"link_ttl"`
	TLS     tlsSettings   `yaml:"tls"`
}

type tlsSettings struct {
	// Mode: proxy (TLS ends before us), files, acme, or off (loopback).
	Mode string `yaml:"mode"`
	// Cert and Key are absolute paths of PEM files, for files.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	// ACME is the address that the certificate's issuer may write to, for acme.
	ACME string `yaml:"acme_email"`
}

type adminSettings struct {
	// Listen serves /metrics, /livez and /readyz.
	Listen    string `yaml:"listen"`
	WebConfig string `yaml:"web_config"`
}

type gitSettings struct {
	// Origins are the repository hosts that may be dialled; the first is used.
	Origins []string `yaml:"origins"`
	// API is the root of the host's REST interface.
	API     string `yaml:"api"`
	History string `yaml:"history"`
}

type providerSettings struct {
	Dialect           string        `yaml:"dialect"`
	BaseURL           string        `yaml:"base_url"`
	Model             string        `yaml:"model"`
	KeyFile           string        `yaml:"key_file"`
	ContextCharacters int           `yaml:"context_characters"`
	Timeout           time.Duration `yaml:"timeout"`
}

type sandboxSettings struct {
	Backend string `yaml:"backend"`
	Runtime string `yaml:"runtime"`
	// DockerSocket is where the engine of the docker backend listens.
	DockerSocket string `yaml:"docker_socket"`
}

type budgetSettings struct {
	// TokensPerJob bounds input and output tokens of one job.
	TokensPerJob int64 `yaml:"tokens_per_job"`
	JobsPerDay   int64 `yaml:"jobs_per_day"`
	TokensPerDay int64 `yaml:"tokens_per_day"`
	EgressPerDay int64 `yaml:"egress_bytes_per_day"`
}

type keepSettings struct {
	// DiskFloor is the free space below which no lease is taken.
	DiskFloor byteSize `yaml:"disk_floor"`
	// Days is how long log, transcript, patch and evidence of a run are kept.
	Days int `yaml:"days"`
	// Bytes is what those of all runs may take of the disk.
	Bytes byteSize `yaml:"bytes"`
}

const (
	maxKeepDays  = 3650
	minKeepBytes = 1 << 20
)

func (k keepSettings) check() error {
	switch {
	case k.Days < 1 || k.Days > maxKeepDays:
		return fmt.Errorf("%w: keep.days must be 1 to %d", errSettings, maxKeepDays)
	case k.Bytes < minKeepBytes:
		return fmt.Errorf("%w: keep.bytes must be at least 1MiB", errSettings)
	}
	return nil
}

func defaultSettings() *Settings {
	s := &Settings{
		Role: string(protocol.RoleWorker), Policy: "strict", CacheDir: "/var/cache/veyra-sandboxd", Engine: "loop", name: "default",
		named: map[string]bool{},
	}
	s.ControlPlane = controlPlaneSettings{Origins: []string{"https://api.veyra.surf"}, Heartbeat: protocol.HeartbeatDefault}
	s.Public = publicSettings{Listen: "0.0.0.0:9100", LinkTTL: 15 * time.Minute, TLS: tlsSettings{Mode: "proxy"}}
	s.Admin.Listen = "127.0.0.1:9101"
	s.Git = gitSettings{Origins: []string{"https://github.com"}, API: "https://api.github.com", History: "none"}
	s.Provider = providerSettings{Dialect: "openai", ContextCharacters: 240_000, Timeout: 10 * time.Minute}
	s.Sandbox = sandboxSettings{Backend: autoBackend, Runtime: autoRuntime, DockerSocket: "/run/docker.sock"}
	s.Budget.TokensPerJob = 2_000_000
	s.Keep = keepSettings{DiskFloor: 5 << 30, Days: 14, Bytes: 5 << 30}
	return s
}

// errSettings is wrapped by every fault of a setting: exit 78.
var errSettings = errors.New("settings can't be used")

const maxSettingsBytes = 256 << 10

// readFile reads the configuration file. Unknown keys are refused with the
// nearest known name.
func (s *Settings) readFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %w", errSettings, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSettingsBytes+1))
	if err != nil || len(text) > maxSettingsBytes {
		return fmt.Errorf("%w: %s can't be read or is over 256 KiB", errSettings, path)
	}
	if strings.TrimSpace(string(text)) != "" {
		if err := yaml.UnmarshalWithOptions(text, s, yaml.Strict()); err != nil {
			return fmt.Errorf("%w: %s: %s", errSettings, path, explainYAML(err))
		}
	}
	s.name = strings.TrimSuffix(filepath.Base(path), ".yaml")
	return nil
}

// finish fills what depends on other settings.
func (s *Settings) finish() {
	s.noteDefaults()
	if s.StateDir == "" {
		s.StateDir = filepath.Join("/var/lib/veyra-sandboxd", s.name)
	}
	if s.ControlPlane.Heartbeat < protocol.HeartbeatFloor {
		s.note("the heartbeat interval is raised to its floor of 2s")
		s.ControlPlane.Heartbeat = protocol.HeartbeatFloor
	}
	s.finishPublic()
}

// readPolicy returns what Policy names; it is read once.
func (s *Settings) readPolicy() (policies.Policy, error) {
	if s.policy == nil {
		policy, err := policies.Load(s.Policy)
		if err != nil {
			return policy, fmt.Errorf("%w: %w", errSettings, err)
		}
		s.policy = &policy
	}
	return *s.policy, nil
}

func (s *Settings) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// check says what can't work before anything is touched.
func (s *Settings) check() error {
	switch {
	case !filepath.IsAbs(s.StateDir) || !filepath.IsAbs(s.CacheDir):
		return fmt.Errorf("%w: state_dir and cache_dir must be absolute paths", errSettings)
	case policies.IsFile(s.Policy) && !filepath.IsAbs(s.Policy):
		return fmt.Errorf("%w: policy: a policy file must be named by its absolute path", errSettings)
	case len(s.ControlPlane.Origins) == 0 || len(s.Git.Origins) == 0:
		return fmt.Errorf("%w: control_plane.origins and git.origins must name at least one origin", errSettings)
	case s.Budget.TokensPerJob < 0:
		return fmt.Errorf("%w: budget.tokens_per_job must not be negative", errSettings)
	}
	if err := s.Keep.check(); err != nil {
		return err
	}
	for _, text := range s.Git.Origins {
		if _, err := protocol.ParseOwnerOrigin(text); err != nil {
			return fmt.Errorf("%w: git.origins: %w", errSettings, err)
		}
	}
	if err := s.checkVersion(); err != nil {
		return err
	}
	return s.checkTLS()
}

// gitOrigins are the repository hosts that jobs may dial; check has read them.
func (s *Settings) gitOrigins() []protocol.Origin {
	var all []protocol.Origin
	for _, text := range s.Git.Origins {
		if origin, err := protocol.ParseOwnerOrigin(text); err == nil {
			all = append(all, origin)
		}
	}
	return all
}

// checkVersion refuses values that this version can't keep its word on: a
// setting that is read and has no effect would be a silent weakening.
func (s *Settings) checkVersion() error {
	for _, setting := range []struct {
		name string
		ok   bool
		only string
	}{
		{"role", s.Role == string(protocol.RoleWorker) || s.Role == string(protocol.RoleVerifier), "WORKER or VERIFIER"},
		{"engine", s.Engine == "loop", "loop"},
		{"sandbox.backend", knownBackend(s.Sandbox.Backend), backendChoices},
		{"sandbox.runtime", s.knownRuntime(s.Sandbox.Runtime), s.runtimeChoices()},
		{"sandbox.docker_socket", filepath.IsAbs(s.Sandbox.DockerSocket), "an absolute path"},
		{"provider.dialect", s.Provider.Dialect == "openai", "openai"},
		{"git.history", s.Git.History == "none", "none"},
		{"registries", len(s.Registries) == 0, "empty"},
		{"admin.web_config", s.Admin.WebConfig == "", "empty"},
		{"budget.jobs_per_day", s.Budget.JobsPerDay == 0, "0"},
		{"budget.tokens_per_day", s.Budget.TokensPerDay == 0, "0"},
		{"budget.egress_bytes_per_day", s.Budget.EgressPerDay == 0, "0"},
	} {
		if !setting.ok {
			return fmt.Errorf("%w: %s must be %s in this version", errSettings, setting.name, setting.only)
		}
	}
	return nil
}

// explainYAML keeps the parser's line and column and adds the nearest key.
func explainYAML(err error) string {
	text := yaml.FormatError(err, false, false)
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		if near := nearestKey(text); near != "" {
			text += " (did you mean " + near + "?)"
		}
	}
	return strings.Join(strings.Fields(text), " ")
}
