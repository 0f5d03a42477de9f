/** The schemas of request bodies; schemas.ts has those of answers. */
import { Type } from 'typebox';
import { podAddressPattern, podPlacePattern } from '#core/check-places.ts';
import {
  bytes,
  labelKey,
  labels,
  labelValue,
  nullable,
  object,
  ownLabels,
  storeName,
  volumeName,
} from './schema-parts.ts';
import { access, role } from './schemas.ts';

export const newVolume = object({
  name: volumeName,
  store: Type.Optional(storeName),
  bytes: Type.Optional(bytes),
  enforce: Type.Optional(Type.Boolean({ description: 'Enforce the size (default: decided by the store)' })),
  access: Type.Optional(access),
  labels: Type.Optional(labels),
  ownLabels: Type.Optional(ownLabels),
});

export const expansion = object({ bytes });

export const renaming = object({ name: volumeName });

export const volumeChange = object({
  labels: Type.Optional(
    Type.Record(labelKey, nullable(labelValue), {
      title: 'Labels',
      maxProperties: 64,
      additionalProperties: false,
      description: 'Merged into the labels; null removes a label',
    }),
  ),
  ownLabels: Type.Optional(ownLabels),
  enforce: Type.Optional(Type.Boolean({ description: 'true: enforce the size permanently' })),
});

export const restoring = object({ name: Type.Optional(volumeName) });

export const mounting = object({
  target: Type.String({ minLength: 1, maxLength: 4096, description: "Absolute path on the server's host" }),
  readOnly: Type.Optional(Type.Boolean()),
});

export const unmounting = object({
  target: Type.String({ maxLength: 4096, pattern: '^/', description: "Absolute path on the server's host" }),
  force: Type.Optional(
    Type.Boolean({
      description:
        'Unmount even if the volume is in use or its server does not respond; processes that use it get errors',
    }),
  ),
});

export const newStore = object({
  name: storeName,
  uri: Type.String({
    minLength: 1,
    maxLength: 4096,
    description: 'e.g. local:///srv/data?layout=image&onDelete=archive',
  }),
  default: Type.Optional(Type.Boolean()),
});

export const checking = object({
  from: Type.Optional(
    Type.String({
      pattern: `^(?:(?:(?:netns|docker|podman|container):)?[A-Za-z0-9][A-Za-z0-9_.-]{0,200}|${podPlacePattern}|${podAddressPattern})$`,
      description:
        'Check from this network instead of the one that the store uses: `container:NAME`, `docker:NETWORK`, `podman:NETWORK`, `netns:NAME`, or the name of a container or network alone; in a cluster `pod:NAMESPACE/NAME`; on a node `pod-address:IP`, or `pod-address:host` for a pod with the network of the node',
    }),
  ),
});

export const adopting = object({
  dryRun: Type.Optional(Type.Boolean()),
  directories: Type.Optional(Type.Boolean({ description: 'Also adopt data without a record (default true)' })),
  names: Type.Optional(
    Type.Array(volumeName, {
      minItems: 1,
      maxItems: 1000,
      description: 'Volumes or directories to adopt (default: all)',
    }),
  ),
});

export const newToken = object({
  name: Type.String({
    minLength: 1,
    maxLength: 128,
    pattern: '^[^\\u0000-\\u001f\\u007f]*$',
    description: '1 to 128 characters, none of them a control character',
  }),
  role,
  stores: Type.Optional(
    Type.Array(storeName, { minItems: 1, maxItems: 64, description: 'One or more stores; omit for all stores' }),
  ),
  expiresIn: Type.Optional(
    Type.String({ pattern: '^[1-9][0-9]{0,4}(s|m|h|d|w)$', description: 'A number and s, m, h, d or w; e.g. 30d' }),
  ),
});
