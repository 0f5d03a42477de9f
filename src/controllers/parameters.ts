import { classParameters, readParameters, type VolumeParameters } from '#core/class-parameters.ts';
import { StowageError } from '#core/errors.ts';
import { areMountFlags, mountFlags, splitMountFlags } from '#core/mount-flags.ts';
import { isNameTemplate, nameFromTemplate } from '#core/name-template.ts';
import { quoted } from '#core/names.ts';
import type { PersistentVolumeClaim, StorageClass } from '#wire/kube/types.ts';
import { volumeNameFor } from './names.ts';

/** Throws for a class with invalid parameters. */
export function parametersOf({ metadata: { name = '' }, parameters = {} }: StorageClass): VolumeParameters {
  const values = readParameters(Object.entries(parameters), classParameters, {
    unknown: (key) =>
      invalid(`class '${name}' has the unknown parameter ${quoted(key)}`, 'Allowed are: store, nameTemplate, enforce'),
    notBoolean: (value) =>
      invalid(`class '${name}': ${quoted(value)} is not a valid value for enforce`, 'Use true or false'),
  });
  const { nameTemplate } = values;
  if (nameTemplate !== undefined && !isNameTemplate(nameTemplate))
    throw invalid(
      `class '${name}': ${quoted(nameTemplate)} is not a valid name template`,
      'Use {namespace}, {name}, {uid}, {label:KEY} and {annotation:KEY}, for example {namespace}-{name}',
    );
  return values;
}

/** Throws for mountOptions that Stowage would not apply. The error does not name them: they may contain secrets. */
export function refuseMountOptions({ metadata: { name = '' }, mountOptions = [] }: StorageClass): void {
  if (areMountFlags(splitMountFlags(mountOptions))) return;
  throw new StowageError(`class '${name}' has mountOptions that Stowage does not support`, {
    code: 'invalid',
    reason: 'class-parameter-invalid',
    action: `Allowed are: ${mountFlags.join(', ')}. Options of the connection to a store belong in the Store object: ask the administrator to remove them from the class.`,
  });
}

function invalid(message: string, action: string): StowageError {
  return new StowageError(message, {
    code: 'invalid',
    reason: 'class-parameter-invalid',
    action: `${action}. Parameters of a class cannot be changed: ask the administrator to delete the class and recreate it.`,
  });
}

/** The name for the volume of a claim. */
export function nameFor({ metadata }: PersistentVolumeClaim, template: string | undefined): string {
  const { namespace, name, uid = '', labels = {}, annotations = {} } = metadata;
  if (template === undefined) return volumeNameFor(uid);
  const values: Readonly<Record<string, string | undefined>> = { namespace, name, uid };
  return nameFromTemplate(template, {
    value: ({ kind, key }) =>
      kind === 'label' ? labels[key] : kind === 'annotation' ? annotations[key] : values[kind],
    missing: ({ kind, key }) => missing(kind, key),
    unfit,
  });
}

const unfit = (name: string): StowageError =>
  new StowageError(`the volume would be called ${quoted(name)}, which cannot be the name of a volume`, {
    code: 'invalid',
    reason: 'claim-name-unfit',
    action:
      'Names have 1 to 128 characters of A-Z a-z 0-9 _ . -: change the name template of the class, or the values that it takes from the claim.',
  });

const missing = (kind: string, key: string): StowageError =>
  new StowageError(`the class names volumes by the ${kind} ${quoted(key)}, which the claim does not have`, {
    code: 'invalid',
    reason: 'claim-name-incomplete',
    action: 'Add it to the claim.',
  });
