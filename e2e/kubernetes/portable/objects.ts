import type { ClassOfStore, Ground } from './run.ts';

export interface ClaimWish {
  readonly name: string;
  readonly of: ClassOfStore | string;
  readonly mode?: 'ReadWriteOnce' | 'ReadWriteMany';
  readonly block?: boolean;
  readonly size?: string;
}

export const claim = ({ namespace }: Ground, { name, of, mode, block, size = '64Mi' }: ClaimWish): object => ({
  apiVersion: 'v1',
  kind: 'PersistentVolumeClaim',
  metadata: { name, namespace },
  spec: {
    accessModes: [mode ?? 'ReadWriteOnce'],
    storageClassName: typeof of === 'string' ? of : of.name,
    volumeMode: block === true ? 'Block' : 'Filesystem',
    resources: { requests: { storage: size } },
  },
});

export interface PodWish {
  readonly name: string;
  /** Its volume is at /data, or the device at /dev/data. */
  readonly script: string;
  readonly volume: object;
  readonly block?: boolean;
  readonly node?: string;
}

/** Runs a script once. */
export const pod = (ground: Ground, { name, script, volume, block, node }: PodWish): object => ({
  apiVersion: 'v1',
  kind: 'Pod',
  metadata: { name, namespace: ground.namespace },
  spec: {
    restartPolicy: 'Never',
    terminationGracePeriodSeconds: 0,
    ...(node === undefined ? {} : { nodeSelector: { 'kubernetes.io/hostname': node } }),
    containers: [container(ground.shell, script, block === true)],
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

export const byClaim = (claimName: string): object => ({ persistentVolumeClaim: { claimName } });
