import type { ClassOfStore, TestContext } from './test-runner.ts';

export interface ClaimOptions {
  readonly name: string;
  readonly storageClass: ClassOfStore | string;
  readonly mode?: 'ReadWriteOnce' | 'ReadWriteMany';
  readonly block?: boolean;
  readonly size?: string;
}

export const claim = (
  { namespace }: TestContext,
  { name, storageClass, mode, block, size = '64Mi' }: ClaimOptions,
): object => ({
  apiVersion: 'v1',
  kind: 'PersistentVolumeClaim',
  metadata: { name, namespace },
  spec: {
    accessModes: [mode ?? 'ReadWriteOnce'],
    storageClassName: typeof storageClass === 'string' ? storageClass : storageClass.name,
    volumeMode: block === true ? 'Block' : 'Filesystem',
    resources: { requests: { storage: size } },
  },
});

export interface PodOptions {
  readonly name: string;
  /** The script. A file system volume is at /data, a block volume at /dev/data. */
  readonly script: string;
  readonly volume: object;
  readonly block?: boolean;
  readonly node?: string;
}

/** A pod that runs a script once. */
export const pod = (context: TestContext, { name, script, volume, block, node }: PodOptions): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: context.namespace },
  spec: {
    restartPolicy: 'Never',
    terminationGracePeriodSeconds: 0,
    ...(node === undefined ? {} : { nodeSelector: { 'kubernetes.io/hostname': node } }),
    containers: [container(context.shell, script, block === true)],
    volumes: [{ name: 'data', ...volume }],
  },
});

export const container = (image: string, script: string, block: boolean): object => ({
  name: 'main',
  image,
  imagePullPolicy: 'IfNotPresent',
  command: ['sh', '-c', script],
  ...(block
    ? { volumeDevices: [{ name: 'data', devicePath: '/dev/data' }] }
    : { volumeMounts: [{ name: 'data', mountPath: '/data' }] }),
});

export const claimVolume = (claimName: string): object => ({ persistentVolumeClaim: { claimName } });
