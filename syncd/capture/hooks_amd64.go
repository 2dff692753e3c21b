package capture

// BPFEntry is the kernel's entry point of bpf(2), bpfEntry32 that for 32-bit processes.
const (
	BPFEntry   = "__x64_sys_bpf"
	bpfEntry32 = "__ia32_sys_bpf"
)
