// Names of Services in the tests on a real kubelet.
module csi-attacher-operator/tests/controlplane/cluster-dns

go 1.26.0

require golang.org/x/net v0.49.0
