package bpf

// LBObject returns the object file of the load balancer. It is shared: do not
// change it.
func LBObject() []byte { return _LBBytes }

// LBNextObject returns the object file of its next release. It is shared: do not
// change it.
func LBNextObject() []byte { return _LBNextBytes }
