package main

import (
	"net"
	"net/netip"
	"strings"

	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// innerDomains end names that lead somewhere in one network only (RFC 6761,
// 6762, 8375, and ICANN's .internal).
var innerDomains = []string{".local", ".localhost", ".internal", ".home.arpa", ".invalid"}

// carrierNAT is shared by the customers of a carrier (RFC 6598).
var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")

// unreachable says why the control plane can't call this host to pair, and what
// to set, or "". One on this machine itself, as for trying, can.
func (s *Settings) unreachable() string {
	for _, text := range s.ControlPlane.Origins {
		if origin, err := protocol.ParseOwnerOrigin(text); err == nil && origin.Loopback() {
			return ""
		}
	}
	if why := outOfReach(s.Public.Host); why != "" {
		return "the control plane can't reach the public host " + s.Public.Host + ": " + why +
			"; set public.host (RUNTIME_PUBLIC_HOST, RUNTIME_PUBLIC_PORT) to a name or address that leads here from outside"
	}
	if s.Public.TLS.Mode == tlsOff {
		return "the control plane connects by https only, but public.tls.mode is off: " +
			"set it (VEYRA_TLS_MODE) to proxy, files or acme"
	}
	return ""
}

// outOfReach says what keeps a host from being reached from outside, or "".
func outOfReach(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		return innerAddress(addr.Unmap().WithZone(""))
	}
	if last := host[strings.LastIndex(host, ".")+1:]; last != "" && last[0] >= '0' && last[0] <= '9' {
		// 127.1 and 0x7f.0.0.1 are short for addresses, for programs that take them.
		return "it ends like an address and is none: write all four numbers, or a name"
	}
	if !strings.Contains(host, ".") {
		return "a name without a dot means something on this machine or network only"
	}
	for _, domain := range innerDomains {
		if strings.HasSuffix(host, domain) {
			return "names that end in " + domain + " mean something on one network only"
		}
	}
	return ""
}

func innerAddress(addr netip.Addr) string {
	switch {
	case addr.IsUnspecified():
		return "it is no address of one host"
	case addr.IsLoopback():
		return "it is an address of the machine itself"
	case addr.IsPrivate(), carrierNAT.Contains(addr):
		return "it is an address of a private network"
	case addr.IsLinkLocalUnicast(), addr.IsMulticast(), !addr.IsGlobalUnicast():
		return "it is an address of the link or of a group"
	}
	return ""
}
