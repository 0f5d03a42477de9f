import type { Placement } from './placement.ts';

/** A CSI driver of Stowage. Attachment, topology and expansion are properties of a driver, so all its stores share them. */
export interface CsiDriver {
  readonly name: string;
  /** File name of its socket, without `.sock`. */
  readonly socket: string;
  // The same values as in the chart's CSIDriver object; scripts/manifests.test.ts compares them.
  readonly attachRequired: boolean;
  readonly podInfoOnMount: boolean;
  readonly fsGroupPolicy: 'File';
  readonly storageCapacity: boolean;
  readonly volumeLifecycleModes: readonly ('Persistent' | 'Ephemeral')[];
  /** The driver applies fsGroup itself (VOLUME_MOUNT_GROUP). Otherwise the kubelet does. */
  readonly volumeMountGroup: boolean;
  /** `node`: each volume belongs to one node, which it reports as its topology. */
  readonly topology: 'none' | 'node';
  /** Several nodes can use a volume at the same time. */
  readonly multiNode: boolean;
  /** Expansion also needs NodeExpandVolume on the node that has the volume mounted. */
  readonly nodeExpansion: boolean;
  /** The default for StorageClasses. A volume that belongs to one node must wait until the node is known. */
  readonly volumeBindingMode: 'Immediate' | 'WaitForFirstConsumer';
}

export const fileDriver: CsiDriver = {
  name: 'file.stowage.dev',
  socket: 'file',
  attachRequired: false,
  podInfoOnMount: true,
  fsGroupPolicy: 'File',
  storageCapacity: false,
  volumeLifecycleModes: ['Persistent', 'Ephemeral'],
  volumeMountGroup: true,
  topology: 'none',
  multiNode: true,
  nodeExpansion: false,
  volumeBindingMode: 'Immediate',
};

export const localDriver: CsiDriver = {
  name: 'local.stowage.dev',
  socket: 'local',
  attachRequired: false,
  podInfoOnMount: true,
  fsGroupPolicy: 'File',
  storageCapacity: true,
  volumeLifecycleModes: ['Persistent', 'Ephemeral'],
  volumeMountGroup: false,
  topology: 'node',
  multiNode: false,
  nodeExpansion: true,
  volumeBindingMode: 'WaitForFirstConsumer',
};

export const drivers: readonly CsiDriver[] = [fileDriver, localDriver];

/** Which driver serves the stores of a placement. A placement without a row does not compile. */
const driverByPlacement: Readonly<Record<Placement, CsiDriver>> = {
  node: localDriver,
  anywhere: fileDriver,
  'mount-worker': fileDriver,
};

/** A store of an unknown kind (undefined) belongs to file.stowage.dev. */
export const driverFor = (placement: Placement | undefined): CsiDriver =>
  placement === undefined ? fileDriver : driverByPlacement[placement];

/** Undefined: not a driver of Stowage. */
export const driverNamed = (name: string | undefined): CsiDriver | undefined =>
  drivers.find((driver) => driver.name === name);
