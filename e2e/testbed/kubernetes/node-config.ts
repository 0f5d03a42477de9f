import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { Authority, CertificateFiles } from './certificates.ts';
import { pauseImage } from './images.ts';
import { addresses } from './network.ts';

/** The folder where distributions install CNI plugins. */
export const cniPlugins = (): string | undefined =>
  ['/usr/lib/cni', '/usr/libexec/cni', '/opt/cni/bin'].find((folder) => existsSync(join(folder, 'ptp')));

/** Each pod has its own veth pair with routes: over a bridge, traffic would bypass the rules for service addresses. */
export const podNetwork = (subnet: string): object => ({
  cniVersion: '0.4.0',
  name: 'testbed',
  plugins: [
    {
      type: 'ptp',
      ipam: { type: 'host-local', ranges: [[{ subnet }]], routes: [{ dst: '0.0.0.0/0' }] },
    },
    { type: 'portmap', capabilities: { portMappings: true } },
  ],
});

export const containerdConfig = (networks: string, plugins: string): string => `
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/${pauseImage}"
  # A pod's first process asks for less than the machine may allow.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "${plugins}"
    conf_dir = "${networks}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`;

export interface KubeletConfigOptions {
  readonly group: string;
  readonly authority: Authority;
  readonly serverCertificate: CertificateFiles;
}

export const kubeletConfig = ({ group, authority, serverCertificate }: KubeletConfigOptions): object => ({
  apiVersion: 'kubelet.config.k8s.io/v1beta1',
  kind: 'KubeletConfiguration',
  authentication: {
    anonymous: { enabled: false },
    webhook: { enabled: true },
    x509: { clientCAFile: authority.certificate },
  },
  authorization: { mode: 'Webhook' },
  tlsCertFile: serverCertificate.certificate,
  tlsPrivateKeyFile: serverCertificate.key,
  containerRuntimeEndpoint: 'unix:///run/containerd/containerd.sock',
  cgroupDriver: 'cgroupfs',
  cgroupRoot: `/${group}`,
  failCgroupV1: false,
  failSwapOn: false,
  // The kubelet would create the default folder on this machine.
  volumePluginDir: '/var/lib/kubelet/volumeplugins',
  // There is no DNS server.
  resolvConf: '',
  clusterDomain: 'cluster.local',
  // The disk belongs to this machine, and other programs that fill it must not evict pods.
  evictionHard: { 'memory.available': '100Mi', 'nodefs.available': '100Mi', 'imagefs.available': '100Mi' },
  imageGCHighThresholdPercent: 100,
  nodeStatusUpdateFrequency: '5s',
});

export const proxyArgs = (name: string, kubeconfig: string): readonly string[] => [
  `--kubeconfig=${kubeconfig}`,
  `--hostname-override=${name}`,
  '--proxy-mode=iptables',
  `--cluster-cidr=${addresses.pods}`,
  // The connection tracking table belongs to the whole machine, so the size of the table must not change.
  '--conntrack-max-per-core=0',
  '--conntrack-min=0',
];
