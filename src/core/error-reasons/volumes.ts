import { administrators, everybody } from './reason.ts';

/** Volumes: create, find, change and delete. */
export const volumeReasons = {
  'access-unsupported': everybody('unsupported', 'The store has no volumes with this access.'),
  'block-read-only': everybody('unsupported', 'A raw block volume cannot be given to a pod read-only.'),
  'data-missing': administrators('not-found', 'The record of the volume exists, but its data does not.'),
  'data-wrong-kind': administrators('conflict', 'The data of the volume is of another kind than its record says.'),
  'enforcement-needs-unmount': everybody(
    'conflict',
    'The volume was mounted before its size was enforced; unmount it first.',
  ),
  'enforcement-permanent': everybody('unsupported', 'Enforcement of the size cannot be switched off.'),
  'enforcement-unsupported': everybody('unsupported', 'The store cannot enforce the size of a volume.'),
  'enforcement-without-size': everybody('invalid', 'Enforcement was requested for a volume without a size.'),
  'expand-unsupported': everybody('unsupported', 'The store cannot enlarge volumes.'),
  'file-too-large': administrators('out-of-range', 'The file system of the store cannot hold a file of this size.'),
  'filesystem-damaged': administrators('conflict', 'The file system in the image is damaged.'),
  'grow-failed': administrators('internal', 'The program that grows the file system failed.'),
  'grow-needs-unmount': administrators('unsupported', 'The file system cannot grow while it is mounted.'),
  'image-busy': administrators('busy', 'Another program may have the image open.'),
  'label-missing': everybody('invalid', 'The path template of the store needs a label that the volume does not have.'),
  'label-unfit-for-path': everybody(
    'invalid',
    'A label cannot be used as a folder name in the path template of the store.',
  ),
  'mkfs-failed': administrators('internal', 'The program that creates the file system failed.'),
  'rename-unsupported': everybody('unsupported', 'The store cannot rename volumes.'),
  'shrink-refused': everybody('out-of-range', 'The new size is smaller than the volume; volumes cannot shrink.'),
  'usage-unsupported': everybody('unsupported', 'The store cannot tell how much data a volume holds.'),
  'volume-ambiguous': everybody('conflict', 'Several stores or nodes have a volume of this name.'),
  'volume-being-made': everybody('busy', 'Another Stowage is creating a volume of this name.'),
  'volume-data-busy': administrators('in-use', 'Something is mounted on the data of the volume.'),
  'volume-data-unusable': administrators('conflict', 'The data of the volume cannot be used.'),
  'volume-exists': everybody('exists', 'The store has a volume of this name already.'),
  'volume-in-use': administrators('in-use', 'The volume is in use on this host.'),
  'volume-in-use-elsewhere': administrators('in-use', 'Another host uses the volume.'),
  'volume-locked-elsewhere': everybody('busy', 'Another Stowage is working on the volume.'),
  'volume-lookup-incomplete': everybody(
    'unavailable',
    'The volume was not found, but a store or a node could not be asked.',
  ),
  'volume-not-empty': everybody('conflict', 'The volume was to be deleted only if it is empty, and may contain data.'),
  'volume-reference': everybody('invalid', 'The text is not a name, a store/name or an id of a volume.'),
  'volume-root-squashed': everybody(
    'denied',
    'Nobody could write to the volume, because the NFS server maps its users to others.',
  ),
  'volume-served-on': administrators(
    'in-use',
    'The volume is not mounted any more, but a process still uses its old mount.',
  ),
  'volume-unknown': everybody('not-found', 'No volume has this name or id.'),
  'volume-use-unknown': administrators(
    'unavailable',
    'A container engine could not be asked whether its containers use the volume.',
  ),
  'volume-would-shrink': everybody(
    'out-of-range',
    'The size is smaller than that of the volume; volumes cannot shrink.',
  ),
  'volume-written-elsewhere': everybody('in-use', 'Another host has the volume mounted for writing.'),
} as const;
