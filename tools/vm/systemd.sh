# With systemd: the daemon in a delegated group, and by the unit that users get.
delegated() {
  systemd-run --quiet --wait --pipe -p Delegate=yes -p DelegateSubgroup=supervisor -p Slice=veyra.slice \
    -E VEYRA_CACHE_DIR="$VEYRA_CACHE_DIR" -E VEYRA_SANDBOX_RUNTIME="$VEYRA_SANDBOX_RUNTIME" "$@"
}
want 7 "sandbox run in a delegated group" delegated /payload/repo/bin/veyra-sandboxd sandbox run --policy strict -- sh -c 'exit 7'
# As our unit holds the daemon, with what it wants loaded beforehand.
modules() { sed -n "s/^$1=//p" deploy/veyra-sandboxd@.service | grep -o 'modprobe@[a-z]*.service' | xargs; }
unit() {
  local line properties=()
  for line in After Wants; do properties+=(-p "$line=$(modules "$line")"); done
  while read -r line; do properties+=(-p "$line"); done < <(sed -n '/^\[Service\]/,/^\[Install\]/p' deploy/veyra-sandboxd@.service |
    grep -E '^(Slice|Delegate|DelegateSubgroup|OOMPolicy|Limit[A-Z]*|TasksMax|CapabilityBoundingSet|NoNewPrivileges|Protect[A-Za-z]*|PrivateTmp|DevicePolicy|DeviceAllow|SystemCallArchitectures|KeyringMode|UMask|CacheDirectory|CacheDirectoryMode|RuntimeDirectory[A-Za-z]*)=')
  systemd-run --quiet --wait --pipe "${properties[@]}" -p ReadWritePaths=/payload/cache -p StateDirectory=veyra-sandboxd/vm -p StateDirectoryMode=0700 \
    -E VEYRA_CACHE_DIR="$VEYRA_CACHE_DIR" -E VEYRA_SANDBOX_RUNTIME="$VEYRA_SANDBOX_RUNTIME" "$@"
}
want 0 "doctor as the unit holds the daemon" unit /payload/repo/bin/veyra-sandboxd doctor --policy strict --state-dir /var/lib/veyra-sandboxd/vm
