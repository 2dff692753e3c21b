package capture

// BPFEntry is the kernel's entry point of bpf(2). 32-bit processes have no other one.
const (
	BPFEntry   = "__arm64_sys_bpf"
	bpfEntry32 = ""
)
