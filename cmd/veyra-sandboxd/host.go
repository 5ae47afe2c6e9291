package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/veyra-labs/veyra-sandboxd/images"
	"github.com/veyra-labs/veyra-sandboxd/internal/confine"
	"github.com/veyra-labs/veyra-sandboxd/internal/durable"
	"github.com/veyra-labs/veyra-sandboxd/internal/redact"
	"github.com/veyra-labs/veyra-sandboxd/journal"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
	"github.com/veyra-labs/veyra-sandboxd/sandbox"
	"github.com/veyra-labs/veyra-sandboxd/sandbox/runner"
	"github.com/veyra-labs/veyra-sandboxd/signer"
	"github.com/veyra-labs/veyra-sandboxd/supervisor"
)

// The ids that the supervisor and the signer take when the owner names no
// user: below the sandboxes' ranges, above everything else.
const (
	firstOwnID = 1_879_048_192 - 2*ownIDs
	ownIDs     = 32_768
)

// host is everything that was opened with power and is used without.
type host struct {
	settings *Settings
	paths    paths
	instance string
	uid, gid int
	lock     *durable.Flock
	signer   *signer.Client
	runner   *runner.Client
	report   sandbox.Report
	advice   []policies.Finding
	fitness  *fitness
	pairing  *supervisor.Pairing
	policy   policies.Policy
	proof    string // digest of the host's proof for evidence; "": none
	images   map[policies.Toolchain]images.Digest
	holds    []io.Closer
	systemd  net.Conn

	public, admin, control net.Listener
	tls                    publicTLS

	// What metrics tell from the start: removed left-overs, bytes of images.
	swept      sandbox.Swept
	imageBytes int64
	// imagesHere says that images lie on the file system of the sandboxes' disks.
	imagesHere bool
	weakenings []string
}

// paths are the parts of the state directory.
type paths struct {
	state, key, binding, journal, jobs, disks, acme, signingLog string
}

func pathsOf(state string) paths {
	return paths{
		state: state, key: filepath.Join(state, "identity", "key"), binding: filepath.Join(state, "identity", "binding"),
		journal: filepath.Join(state, "journal"), jobs: filepath.Join(state, "jobs"), disks: filepath.Join(state, "disks"),
		acme: filepath.Join(state, "acme"), signingLog: filepath.Join(state, signer.LogName),
	}
}

// openHost starts the powerful processes and opens what only root may. On an
// error everything is closed again.
func openHost(ctx context.Context, s *Settings, secrets *redact.Set, log *slog.Logger) (*host, error) {
	h := &host{settings: s, paths: pathsOf(s.StateDir), images: map[policies.Toolchain]images.Digest{}}
	err := h.open(ctx, secrets, log)
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h *host) open(ctx context.Context, secrets *redact.Set, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return withCode(exitHost, "the policy %s needs root for mounts and id ranges: start as root (the daemon gives that up by itself)", h.settings.Policy)
	}
	if err := checkHelpers(); err != nil {
		return err
	}
	for _, step := range []func() error{
		h.lockState,
		func() error { return h.startSigner(ctx) },
		func() error { return h.startBackend(ctx, log) },
		h.openImages, func() error { return h.listen(log) }, h.enterState,
		func() error { return h.openPairing(secrets, log) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return h.handOver()
}

// supervised are the parts of the state that the supervisor writes.
func (h *host) supervised() []string {
	parts := []string{h.paths.binding, h.paths.journal, h.paths.jobs}
	if h.settings.Public.TLS.Mode == tlsACME {
		parts = append(parts, h.paths.acme)
	}
	return parts
}

// lockState makes this process the one writer and the parts of the state.
func (h *host) lockState() (err error) {
	if h.lock, err = journal.Lock(h.paths.state); err != nil {
		return err
	}
	for _, dir := range append(h.supervised(), h.paths.disks) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("%w: %w", supervisor.ErrState, err)
		}
	}
	return nil
}

func (h *host) startSigner(ctx context.Context) (err error) {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	if err := h.chooseIDs(); err != nil {
		return err
	}
	h.signer, err = signer.Start(ctx, exe, signer.Config{
		StateDir: h.paths.state, UID: h.signerID(), GID: h.gid, Stderr: os.Stderr,
	})
	if err != nil {
		return err
	}
	h.instance = h.signer.RuntimeID().Instance()
	h.weakenings = append(h.weakenings, h.signer.Weakenings()...)
	return nil
}

// chooseIDs: root without capabilities would still own the sandboxes' user
// namespaces, so the supervisor takes another uid in any case.
func (h *host) chooseIDs() error {
	if h.settings.User == "" {
		h.uid = firstOwnID + h.slot()
		h.gid = h.uid
		return nil
	}
	account, err := user.Lookup(h.settings.User)
	if err != nil {
		return fmt.Errorf("%w: --user: %w", errSettings, err)
	}
	uid, uidErr := strconv.Atoi(account.Uid)
	gid, gidErr := strconv.Atoi(account.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil || uid == 0 {
		return fmt.Errorf("%w: --user %s must be an ordinary user", errSettings, h.settings.User)
	}
	h.uid, h.gid = uid, gid
	return nil
}

// slot tells instances apart by their state directory.
func (h *host) slot() int { return int(crc32.ChecksumIEEE([]byte(h.paths.state)) % ownIDs) }

func (h *host) signerID() int { return firstOwnID + ownIDs + h.slot() }

// startBackend starts the runner and really starts a sandbox under the policy.
// A policy that can't be enforced ends the daemon: there is no fallback.
func (h *host) startBackend(ctx context.Context, log *slog.Logger) (err error) {
	if h.policy, err = daemonPolicy(h.settings, h.paths.disks); err != nil {
		return err
	}
	if _, err := acceptedIDs(h.paths.state); err != nil {
		return err
	}
	c, err := chooseRuntime(ctx, h.settings, h.instance, h.paths.disks)
	tellPassedOver(log, c.over)
	if err != nil {
		return withCode(exitHost, "this host can't enforce the policy %s (see `veyra-sandboxd doctor`): %w", h.policy.Name, err)
	}
	h.runner, h.report, h.advice = c.client, c.report, c.advice
	h.weakenings = append(h.weakenings, adviceWeakenings(c.advice)...)
	if h.swept = h.runner.Swept(); len(h.swept) > 0 {
		log.Info("swept what an earlier runner left", "swept", h.swept)
	}
	if h.fitness, err = newFitness(h.policy.Name, h.report); err != nil {
		return err
	}
	owners, err := h.settings.readPolicy()
	if err != nil {
		return err
	}
	h.proof = provenDigest(h.paths.state, h.report, owners, log)
	return nil
}

// openImages holds the newest image of each toolchain, so that none is removed
// while this daemon may use it. No image is no error: the daemon beats and
// says what is missing.
func (h *host) openImages() error {
	store, err := images.Open(filepath.Join(h.settings.CacheDir, "images"))
	if err != nil {
		return err
	}
	all, err := store.List()
	if err != nil {
		return err
	}
	for _, image := range all {
		h.imageBytes += image.Bytes
	}
	h.imagesHere = sameDisk(h.settings.CacheDir, h.paths.disks)
	for _, name := range images.Recipes() {
		image, err := store.Lookup(name)
		if override := h.settings.Images[name]; override != "" {
			image, err = store.Lookup(override)
		}
		if errors.Is(err, images.ErrMissing) && h.settings.Images[name] == "" {
			continue
		}
		if err != nil {
			return fmt.Errorf("image for %s: %w", name, err)
		}
		hold, err := store.Hold(image.Digest)
		if err != nil {
			return fmt.Errorf("image for %s: %w", name, err)
		}
		h.holds = append(h.holds, hold)
		h.images[policies.Toolchain(image.Toolchain)] = image.Digest
	}
	return nil
}

func (h *host) openPairing(secrets *redact.Set, log *slog.Logger) (err error) {
	h.pairing, err = openPairing(h.settings, h.paths.binding, h.signer, log)
	return err
}

func openPairing(s *Settings, dir string, key *signer.Client, log *slog.Logger) (*supervisor.Pairing, error) {
	var origins []protocol.Origin
	for _, text := range s.ControlPlane.Origins {
		origin, err := protocol.ParseOwnerOrigin(text)
		if err != nil {
			return nil, fmt.Errorf("%w: control_plane.origins: %w", errSettings, err)
		}
		origins = append(origins, origin)
	}
	return supervisor.OpenPairing(supervisor.PairingConfig{
		Dir: dir, RuntimeID: key.RuntimeID(), PublicKey: base64.RawURLEncoding.EncodeToString(key.PublicKey()),
		PublicHost: s.Public.Host, Unreachable: s.unreachable(), LinkTTL: s.Public.LinkTTL, Origins: origins, Log: log,
	})
}

// handOver gives the supervisor's parts of the state to its id. The key stays
// root's, the disks are the runner's.
func (h *host) handOver() error {
	for _, dir := range []string{h.paths.state, filepath.Dir(h.paths.binding)} {
		if err := os.Lchown(dir, h.uid, h.gid); err != nil {
			return fmt.Errorf("%w: giving %s to the supervisor: %w", supervisor.ErrState, dir, err)
		}
	}
	for _, dir := range h.supervised() {
		err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(name, h.uid, h.gid)
		})
		if err != nil {
			return fmt.Errorf("%w: giving %s to the supervisor: %w", supervisor.ErrState, dir, err)
		}
	}
	return nil
}

// watch closes what depends on a process that died. Run goes on: the daemon
// says so and takes no work.
func (h *host) watch(ctx context.Context, log *slog.Logger) {
	for range 2 {
		select {
		case <-ctx.Done():
			return
		case <-h.runner.Done():
			log.Error("the runner is gone: restart the daemon; no work is taken until then")
			<-ctx.Done()
			return
		case <-h.signer.Done():
			log.Error("the signer is gone: restart the daemon; nothing is signed and no work is taken until then")
			h.runner.Close() // ends running sandboxes: their results could not be signed
			<-ctx.Done()
			return
		}
	}
}

// giveUp ends every power of this process, for good.
func (h *host) giveUp() error {
	weakenings, err := confine.Lockdown{
		UID: h.uid, GID: h.gid, Filter: confine.SupervisorFilter,
		Rules: &confine.Rules{
			Write: h.supervised(),
			Read:  []string{h.paths.signingLog},
			ReadIfPresent: slices.Concat([]string{
				"/etc", "/run/systemd/resolve", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/usr/share/zoneinfo",
				"/proc/meminfo", "/proc/self", "/sys/kernel/mm/transparent_hugepage", "/dev/null", "/dev/urandom",
			}, certificateDirs(), h.tls.dirs()),
		},
	}.Apply()
	if err != nil {
		return withCode(exitHost, "the supervisor could not give up its powers: %w", err)
	}
	h.weakenings = append(h.weakenings, weakenings...)
	return nil
}

// certificateDirs are where SSL_CERT_FILE and SSL_CERT_DIR lead.
func certificateDirs() []string {
	var dirs []string
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		dirs = append(dirs, filepath.Dir(file))
	}
	return append(dirs, filepath.SplitList(os.Getenv("SSL_CERT_DIR"))...)
}

// close ends the processes; sandboxes end with the runner.
func (h *host) close() {
	for _, l := range []net.Listener{h.public, h.admin, h.control, h.tls.plain} {
		if l != nil {
			_ = l.Close()
		}
	}
	if h.runner != nil {
		_ = h.runner.Close()
	}
	if h.signer != nil {
		_ = h.signer.Close()
	}
	for _, hold := range h.holds {
		_ = hold.Close()
	}
	if h.lock != nil {
		_ = h.lock.Unlock()
	}
}

// enterState makes the state directory the working directory, before anything
// keeps a name in it: the supervisor's names are relative, so that it needs no
// right to pass the directories above, which may be another user's.
func (h *host) enterState() error {
	if err := os.Chdir(h.paths.state); err != nil {
		return fmt.Errorf("%w: %w", supervisor.ErrState, err)
	}
	h.paths = pathsOf(".")
	unix.Umask(0o077)
	return nil
}
