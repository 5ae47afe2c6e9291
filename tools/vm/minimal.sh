# Without systemd: PID 1 and everything lie at the root of the tree, where the
# daemon's own group has no parent.
want 7 "sandbox run" veyra-sandboxd sandbox run --policy strict -C tools/findings -- sh -c 'exit 7'
tests sandbox/oci "${VEYRA_VM_TESTS:-^(TestContractOnRunc|TestAnotherUIDCantReachASandbox|TestJ02StrayProcess|TestJ02RunnerKilled)\$/^(Limits|runc)?\$}"
[ -n "${VEYRA_VM_TESTS:-}" ] || want 0 "doctor --prove" veyra-sandboxd doctor --prove --policy strict
