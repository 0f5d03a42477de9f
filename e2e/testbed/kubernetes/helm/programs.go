//go:build programs

// Package helm names what the test bed builds, so that go.mod has all of it.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
