/** The Kubernetes objects that run Stowage on every node. */

export const namespace = 'stowage-system';
export const agentLabels = { app: 'stowage-agent' } as const;
const kubelet = '/var/lib/kubelet';
const state = '/var/lib/stowage';

const driver = (name: string): object => ({
  apiVersion: 'storage.k8s.io/v1',
  kind: 'CSIDriver',
  metadata: { name },
  spec: {
    attachRequired: false,
    podInfoOnMount: true,
    fsGroupPolicy: 'File',
    storageCapacity: false,
    volumeLifecycleModes: ['Persistent', 'Ephemeral'],
  },
});

export interface AgentObjects {
  readonly image: string;
  /** The contents of stowage.yaml. */
  readonly config: object;
}

export const agentObjects = ({ image, config }: AgentObjects): readonly object[] => [
  { apiVersion: 'v1', kind: 'Namespace', metadata: { name: namespace } },
  driver('file.stowage.dev'),
  driver('local.stowage.dev'),
  {
    apiVersion: 'v1',
    kind: 'ConfigMap',
    metadata: { name: 'stowage', namespace },
    // JSON is valid YAML.
    data: { 'stowage.yaml': JSON.stringify(config) },
  },
  {
    apiVersion: 'apps/v1',
    kind: 'DaemonSet',
    metadata: { name: 'stowage-agent', namespace },
    spec: {
      selector: { matchLabels: agentLabels },
      template: { metadata: { labels: agentLabels }, spec: agentPod(image) },
    },
  },
];

/** Host folders at the same paths in the container, so that the kubelet and pods see the agent's mounts. */
const folders = { kubelet, state, run: '/run/stowage', dev: '/dev' } as const;

const agentPod = (image: string): object => ({
  hostNetwork: true,
  automountServiceAccountToken: false,
  priorityClassName: 'system-node-critical',
  tolerations: [{ operator: 'Exists' }],
  terminationGracePeriodSeconds: 60,
  containers: [
    {
      name: 'stowage',
      image,
      imagePullPolicy: 'IfNotPresent',
      args: [
        'node',
        '--kubelet',
        kubelet,
        '--node-name',
        '$(NODE_NAME)',
        '--log-level',
        'info',
        '--config',
        '/etc/stowage/stowage.yaml',
        '--plugins',
        'none',
        '--docker-socket',
        'none',
        '--podman-socket',
        'none',
      ],
      env: [{ name: 'NODE_NAME', valueFrom: { fieldRef: { fieldPath: 'spec.nodeName' } } }],
      // Bidirectional mount propagation requires it.
      securityContext: { privileged: true, runAsUser: 0, runAsGroup: 0 },
      readinessProbe: { exec: { command: ['stowage', 'status', '--quiet'] }, periodSeconds: 5, timeoutSeconds: 5 },
      volumeMounts: [
        { name: 'config', mountPath: '/etc/stowage', readOnly: true },
        { name: 'dev', mountPath: folders.dev },
        ...(['kubelet', 'state', 'run'] as const).map((name) => ({
          name,
          mountPath: folders[name],
          mountPropagation: 'Bidirectional',
        })),
      ],
    },
  ],
  volumes: [
    { name: 'config', configMap: { name: 'stowage' } },
    ...Object.entries(folders).map(([name, path]) => ({ name, hostPath: { path, type: 'DirectoryOrCreate' } })),
  ],
});

export interface StaticVolume {
  readonly name: string;
  readonly driver: 'file.stowage.dev' | 'local.stowage.dev';
  readonly handle: string;
  readonly mode: 'ReadWriteOnce' | 'ReadOnlyMany' | 'ReadWriteMany' | 'ReadWriteOncePod';
  readonly block?: boolean;
  readonly readOnly?: boolean;
}

/** An existing volume as a PersistentVolume, and the claim bound to it. */
export function staticVolume({ name, driver, handle, mode, block, readOnly }: StaticVolume): readonly object[] {
  const common = {
    accessModes: [mode],
    storageClassName: '',
    volumeMode: block === true ? 'Block' : 'Filesystem',
  };
  return [
    {
      apiVersion: 'v1',
      kind: 'PersistentVolume',
      metadata: { name },
      spec: {
        ...common,
        capacity: { storage: '1Gi' },
        persistentVolumeReclaimPolicy: 'Retain',
        claimRef: { namespace: 'default', name },
        csi: { driver, volumeHandle: handle, ...(readOnly === true ? { readOnly } : {}) },
      },
    },
    {
      apiVersion: 'v1',
      kind: 'PersistentVolumeClaim',
      metadata: { name, namespace: 'default' },
      spec: { ...common, volumeName: name, resources: { requests: { storage: '1Gi' } } },
    },
  ];
}

export interface PodWithVolume {
  readonly name: string;
  readonly node: string;
  readonly image: string;
  readonly script: string;
  /** The name of a claim, or the CSI driver and attributes of an inline volume. */
  readonly volume: string | { readonly driver: string; readonly volumeAttributes: Readonly<Record<string, string>> };
  readonly block?: boolean;
  readonly more?: object;
}

/** A pod with the volume at /data, or with the device at /dev/data. */
export const podWithVolume = ({ name, node, image, script, volume, block, more }: PodWithVolume): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: 'default' },
  spec: {
    nodeSelector: { 'kubernetes.io/hostname': node },
    terminationGracePeriodSeconds: 0,
    containers: [
      {
        name: 'main',
        image,
        imagePullPolicy: 'IfNotPresent',
        command: ['sh', '-c', script],
        ...(block === true
          ? { volumeDevices: [{ name: 'data', devicePath: '/dev/data' }] }
          : { volumeMounts: [{ name: 'data', mountPath: '/data' }] }),
      },
    ],
    volumes: [
      {
        name: 'data',
        ...(typeof volume === 'string' ? { persistentVolumeClaim: { claimName: volume } } : { csi: volume }),
      },
    ],
    ...more,
  },
});
