import type { PersistentVolume, PersistentVolumeClaim, StorageClass } from '#wire/kube/types.ts';

/** csi: csi-driver-nfs. subdir: nfs-subdir-external-provisioner. */
export type ForeignDriver = 'csi' | 'subdir';

const driver = 'nfs.csi.k8s.io';
const provisioners = { csi: driver, subdir: 'k8s-sigs.io/nfs-subdir-external-provisioner' } as const;
export const foreignClasses = { csi: 'nfs-csi', subdir: 'nfs-client' } as const;

export interface ForeignExport {
  readonly server: string;
  readonly path: string;
}

/** The StorageClass from the driver's documentation. */
export function foreignClass(kind: ForeignDriver, { server, path }: ForeignExport): StorageClass {
  const { [kind]: provisioner } = provisioners;
  return {
    apiVersion: 'storage.k8s.io/v1',
    kind: 'StorageClass',
    metadata: { name: foreignClasses[kind] },
    provisioner,
    reclaimPolicy: 'Delete',
    volumeBindingMode: 'Immediate',
    ...(kind === 'csi'
      ? { parameters: { server, share: path }, mountOptions: ['nfsvers=4.1'] }
      : { parameters: { archiveOnDelete: 'false' } }),
  };
}

export function foreignClaim(kind: ForeignDriver, namespace: string, name: string): PersistentVolumeClaim {
  return {
    apiVersion: 'v1',
    kind: 'PersistentVolumeClaim',
    metadata: { name, namespace, labels: { app: name }, annotations: { 'example.com/owner': 'the team' } },
    spec: {
      accessModes: ['ReadWriteMany'],
      storageClassName: foreignClasses[kind],
      volumeMode: 'Filesystem',
      resources: { requests: { storage: '1Gi' } },
    },
  };
}

const volumeName = ({ metadata: { uid = '' } }: PersistentVolumeClaim): string => `pvc-${uid}`;

/** The directory that the driver creates for a claim. */
export function foreignDirectory(kind: ForeignDriver, claim: PersistentVolumeClaim): string {
  const { namespace = '', name = '' } = claim.metadata;
  return kind === 'csi' ? volumeName(claim) : `${namespace}-${name}-${volumeName(claim)}`;
}

/**
 * The PersistentVolume that the driver creates for a claim: csi-driver-nfs 4 with external-provisioner 5, or
 * nfs-subdir-external-provisioner.
 */
export function foreignVolume(
  kind: ForeignDriver,
  claim: PersistentVolumeClaim,
  { server, path }: ForeignExport,
): PersistentVolume {
  const { namespace = '', name = '', uid = '', resourceVersion = '' } = claim.metadata;
  const { accessModes = [], resources, storageClassName = '' } = claim.spec;
  const [called, directory] = [volumeName(claim), foreignDirectory(kind, claim)];
  const secrets = 'volume.kubernetes.io/provisioner-deletion-secret';
  const spec: PersistentVolume['spec'] = {
    accessModes,
    storageClassName,
    volumeMode: 'Filesystem',
    persistentVolumeReclaimPolicy: 'Delete',
    capacity: { storage: resources?.requests?.['storage'] ?? '' },
    claimRef: { apiVersion: 'v1', kind: 'PersistentVolumeClaim', namespace, name, uid, resourceVersion },
  };
  const written = { apiVersion: 'v1', kind: 'PersistentVolume' };
  const provisioned = { 'pv.kubernetes.io/provisioned-by': provisioners[kind] };
  if (kind === 'subdir')
    return {
      ...written,
      metadata: { name: called, annotations: provisioned, finalizers: ['kubernetes.io/pv-protection'] },
      spec: { ...spec, nfs: { server, path: `${path}/${directory}` } },
    };
  return {
    ...written,
    metadata: {
      name: called,
      annotations: { ...provisioned, [`${secrets}-name`]: '', [`${secrets}-namespace`]: '' },
      finalizers: ['external-provisioner.volume.kubernetes.io/finalizer', 'kubernetes.io/pv-protection'],
    },
    spec: {
      ...spec,
      mountOptions: ['nfsvers=4.1'],
      csi: {
        driver,
        volumeHandle: `${server}#${path.replace(/^\//, '')}#${directory}##`,
        volumeAttributes: {
          'csi.storage.k8s.io/pv/name': called,
          'csi.storage.k8s.io/pvc/name': name,
          'csi.storage.k8s.io/pvc/namespace': namespace,
          server,
          share: path,
          subdir: directory,
          'storage.kubernetes.io/csiProvisionerIdentity': '1763287000000-8081-nfs.csi.k8s.io',
        },
      },
    },
  };
}
