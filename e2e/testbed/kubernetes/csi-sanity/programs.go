//go:build programs

// Package sanity names what the test bed builds, so that go.mod has all of it.
package sanity

import _ "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"
