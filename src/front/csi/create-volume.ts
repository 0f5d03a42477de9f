import { formatSize } from '#base/size.ts';
import { claimLabels } from '#core/claim-labels.ts';
import { classParameters, type ParameterName, readParameters, type VolumeParameters } from '#core/class-parameters.ts';
import { StowageError } from '#core/errors.ts';
import { ownLabel } from '#core/labels.ts';
import type { Labels, Volume, VolumeName } from '#core/model.ts';
import { nameFromTemplate } from '#core/name-template.ts';
import { nameFor, quoted } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { enforcesSizes, type StoreView } from '#core/store-view.ts';
import type { NewVolume } from '#core/volumes.ts';
import type { CreateVolumeRequest, TopologyRequirement } from '#wire/csi/generated/csi.ts';
import { newVolumeFilesystemMismatch, parseCapabilities, unsupportedBecause } from './capabilities.ts';
import { chooseStore, type DriverContext, storeRequired, storesOf, topologyOf } from './driver-context.ts';
import {
  type CapacityLimits,
  invalidRequest,
  isWithin,
  parseCapacityRange,
  requiredText,
  toCheckedMap,
} from './request-fields.ts';
import { volumeFilesystemMismatch } from './resolve-volume.ts';

/** The prefix of the parameters and the volume context that Kubernetes' sidecars and the kubelet add. */
const kubernetesPrefix = 'csi.storage.k8s.io/';
const claimLabelByParameter: Readonly<Record<string, string>> = {
  'csi.storage.k8s.io/pvc/name': claimLabels.name,
  'csi.storage.k8s.io/pvc/namespace': claimLabels.namespace,
  'csi.storage.k8s.io/pv/name': claimLabels.persistentVolume,
};

export function parseParameters(
  given: ReadonlyMap<string, string>,
  allowed: readonly ParameterName[] = classParameters,
): VolumeParameters {
  const ours = [...given].filter(([key]) => !key.startsWith(kubernetesPrefix));
  return readParameters(ours, allowed, {
    unknown: (key) => invalidRequest(`unknown parameter ${quoted(key)}; supported parameters: ${allowed.join(', ')}`),
    notBoolean: () => invalidRequest('the parameter enforce must be true or false'),
  });
}

/** Labels that name the volume's claim, as far as the provisioner names it. */
function claimLabelsFrom(given: ReadonlyMap<string, string>): Labels {
  const known = [...given].flatMap(([key, value]) => {
    const label = claimLabelByParameter[key];
    return label === undefined ? [] : [[label, value]];
  });
  return Object.fromEntries(known);
}

/**
 * The name from the class's `nameTemplate`. Provisioners pass only the name and namespace of a claim, and these only with
 * --extra-create-metadata.
 */
function volumeNameFor(name: string, template: string | undefined, given: ReadonlyMap<string, string>): VolumeName {
  if (template === undefined) return nameFor(name);
  return nameFromTemplate(template, {
    value: ({ text }) => {
      if (text === 'namespace' || text === 'name') return given.get(`${kubernetesPrefix}pvc/${text}`);
      throw invalidRequest(
        `the parameter nameTemplate has ${quoted(`{${text}}`)}; CSI provisioners support only {namespace} and {name}; the other variables require stowage controller`,
      );
    },
    missing: ({ text }) =>
      invalidRequest(
        `the parameter nameTemplate needs the ${text} of the claim, which the provisioner did not send: start it with --extra-create-metadata, or use stowage controller`,
      ),
    unfit: (text) =>
      invalidRequest(`the parameter nameTemplate gives ${quoted(text)}, which is not a valid volume name`),
  });
}

/** The size for a store whose volumes must have one, if neither the request nor the store's policy gives one. */
const defaultBytes = 1n << 30n;

export async function createVolume(ctx: DriverContext, request: CreateVolumeRequest, call: Call): Promise<Volume> {
  const name = requiredText(request.name, 'name');
  const requestedCapabilities = parseCapabilities(request.volumeCapabilities);
  const range = parseCapacityRange(request.capacityRange);
  const given = toCheckedMap(request.parameters, 'parameters');
  const parameters = parseParameters(given);
  const volumeName = volumeNameFor(name, parameters.nameTemplate, given);
  toCheckedMap(request.secrets, 'secrets');
  if (request.volumeContentSource !== undefined)
    throw invalidRequest('volumes cannot be cloned or created from snapshots yet');
  if (Object.keys(request.mutableParameters).length > 0) throw invalidRequest('mutable parameters are not supported');
  const view = chooseStore(ctx, parameters.store);
  if (view === undefined) throw storeRequired(ctx);
  const wrong = unsupportedBecause(requestedCapabilities, ctx.driver, view);
  if (wrong !== undefined) throw invalidRequest(wrong);
  if (ctx.driver.topology === 'node') requireThisNode(ctx, request.accessibilityRequirements);

  const { access } = requestedCapabilities[0];
  const wanted = { view, range, access, enforce: parameters.enforce, name };
  const newVolume = (): NewVolume => {
    const bytes = sizeFor(view, range);
    const other = newVolumeFilesystemMismatch(requestedCapabilities, view, bytes);
    if (other !== undefined) throw invalidRequest(other);
    return {
      store: view.config.name,
      name: volumeName,
      access,
      labels: {},
      bytes,
      enforce: parameters.enforce,
      ownLabels: { ...claimLabelsFrom(given), ...(name === volumeName ? {} : { [ownLabel('csi-name')]: name }) },
    };
  };
  const accept = (volume: Volume): void => requireCompatible(volume, wanted);
  const acceptData = async (volume: Volume): Promise<void> => {
    const other = await volumeFilesystemMismatch(ctx, volume, requestedCapabilities, call);
    if (other !== undefined) throw invalidRequest(other);
  };
  return await ctx.runExclusive(`create ${name}`, async () => {
    const stores = storesOf(ctx).map(({ config }) => config.name);
    const provisioning = { stores, want: newVolume, accept, acceptData };
    const { volume } = await ctx.core.provision(provisioning, { ...call, requestId: `csi:${name}` });
    return volume;
  });
}

function sizeFor(view: StoreView, { from, to }: CapacityLimits): bigint | undefined {
  const usual = view.config.policy.defaultSize;
  if (from !== undefined) return from;
  if (usual === undefined && !enforcesSizes(view)) return undefined;
  const chosen = usual ?? defaultBytes;
  return to !== undefined && chosen > to ? to : chosen;
}

interface ExpectedVolume {
  readonly view: StoreView;
  readonly range: CapacityLimits;
  readonly access: Volume['access'];
  readonly enforce: boolean | undefined;
  readonly name: string;
}

/** Compares only what the request asks for: the volume may have been expanded since it was created. */
function requireCompatible(present: Volume, wanted: ExpectedVolume): void {
  const isSame =
    present.store === wanted.view.config.name &&
    present.access === wanted.access &&
    isWithin(present.bytes, wanted.range) &&
    (wanted.enforce === undefined || present.enforce === wanted.enforce);
  if (!isSame) throw volumeDiffers(present, wanted);
}

function volumeDiffers(present: Volume, { name }: ExpectedVolume): StowageError {
  const bytes = present.bytes === undefined ? 'no size' : formatSize(present.bytes);
  return new StowageError(
    `volume ${quoted(name)} already exists with other properties: ${present.access}, on store '${present.store}', with ${bytes}`,
    {
      code: 'exists',
      reason: 'csi-volume-differs',
      action: 'Choose another name, or request the volume with these properties.',
    },
  );
}

/** The store is local to this node. */
function requireThisNode(ctx: DriverContext, requirement: TopologyRequirement | undefined): void {
  const wanted = requirement?.requisite ?? [];
  if (wanted.length === 0 || wanted.some(({ segments }) => includesThisNode(ctx, segments))) return;
  throw new StowageError('the volume was requested for other nodes', {
    code: 'exhausted',
    reason: 'csi-other-node',
    action: 'Use a class with volumeBindingMode WaitForFirstConsumer, and allow the nodes that have the store.',
  });
}

export const includesThisNode = (ctx: DriverContext, segments: Readonly<Record<string, string>>): boolean =>
  Object.entries(topologyOf(ctx)).every(([key, value]) => segments[key] === undefined || segments[key] === value);
