package bpf

// LBObject returns the object file of the load balancer. The slice is shared: callers must not
// change it.
func LBObject() []byte { return _LBBytes }

// LBNextObject returns the object file of the load balancer's next release. The slice is shared:
// callers must not change it.
func LBNextObject() []byte { return _LBNextBytes }
