import { formatSize } from '#base/size.ts';
import { claimLabels } from '#core/claim-labels.ts';
import { classParameters, type ParameterName, readParameters, type VolumeParameters } from '#core/class-parameters.ts';
import { StowageError } from '#core/errors.ts';
import { ownLabel } from '#core/labels.ts';
import type { Labels, Volume, VolumeName } from '#core/model.ts';
import { nameFromTemplate } from '#core/name-template.ts';
import { nameFor, quoted } from '#core/names.ts';
import type { Call } from '#core/operations.ts';
import { enforcesSizes, type StoreView } from '#core/stores.ts';
import type { NewVolume } from '#core/volumes.ts';
import type { CreateVolumeRequest, TopologyRequirement } from '#wire/csi/generated/csi.ts';
import { cannotHave, otherNewFilesystem, wishesFrom } from './capabilities.ts';
import { type About, storeFor, storeNeeded, storesOf, topologyOf } from './driver-context.ts';
import { isWithin, mapIn, type Range, rangeIn, refuse, textIn } from './request-fields.ts';
import { otherFilesystemOf } from './resolve-volume.ts';

/** What provisioners add by themselves. */
const ofKubernetes = 'csi.storage.k8s.io/';
const labelOf: Readonly<Record<string, string>> = {
  'csi.storage.k8s.io/pvc/name': claimLabels.name,
  'csi.storage.k8s.io/pvc/namespace': claimLabels.namespace,
  'csi.storage.k8s.io/pv/name': claimLabels.persistentVolume,
};

export function parametersFrom(
  given: ReadonlyMap<string, string>,
  allowed: readonly ParameterName[] = classParameters,
): VolumeParameters {
  const ours = [...given].filter(([key]) => !key.startsWith(ofKubernetes));
  return readParameters(ours, allowed, {
    unknown: (key) => refuse(`there is no parameter ${quoted(key)}; there are ${allowed.join(', ')}`),
    notBoolean: () => refuse('the parameter enforce is neither true nor false'),
  });
}

/** The claim that the volume is for, as far as the provisioner says it. */
function claimLabelsFrom(given: ReadonlyMap<string, string>): Labels {
  const known = [...given].flatMap(([key, value]) => {
    const label = labelOf[key];
    return label === undefined ? [] : [[label, value]];
  });
  return Object.fromEntries(known);
}

/** As the class says, from what provisioners tell of a claim: its name and namespace, and those only if they are told to. */
function volumeNameFor(name: string, template: string | undefined, given: ReadonlyMap<string, string>): VolumeName {
  if (template === undefined) return nameFor(name);
  return nameFromTemplate(template, {
    value: ({ text }) => {
      if (text === 'namespace' || text === 'name') return given.get(`${ofKubernetes}pvc/${text}`);
      throw refuse(
        `the parameter nameTemplate has ${quoted(`{${text}}`)}; by CSI only {namespace} and {name} of a claim are known, the rest only to stowage controller`,
      );
    },
    missing: ({ text }) =>
      refuse(
        `the parameter nameTemplate takes the ${text} of the claim, which was not told: start the provisioner with --extra-create-metadata, or use stowage controller`,
      ),
    unfit: (text) => refuse(`the volume would be called ${quoted(text)}, which cannot be the name of a volume`),
  });
}

/** For a store whose volumes must have one, where nobody said anything. */
const usualBytes = 1n << 30n;

export async function createVolume(about: About, request: CreateVolumeRequest, call: Call): Promise<Volume> {
  const name = textIn(request.name, 'name');
  const wishes = wishesFrom(request.volumeCapabilities);
  const range = rangeIn(request.capacityRange);
  const given = mapIn(request.parameters, 'parameters');
  const parameters = parametersFrom(given);
  const volumeName = volumeNameFor(name, parameters.nameTemplate, given);
  mapIn(request.secrets, 'secrets');
  if (request.volumeContentSource !== undefined) throw refuse('volumes cannot be made of others or of snapshots yet');
  if (Object.keys(request.mutableParameters).length > 0) throw refuse('there are no mutable parameters');
  const view = storeFor(about, parameters.store);
  if (view === undefined) throw storeNeeded(about);
  const wrong = cannotHave(wishes, about.driver, view);
  if (wrong !== undefined) throw refuse(wrong);
  if (about.driver.topology === 'node') requireHere(about, request.accessibilityRequirements);

  const { access } = wishes[0];
  const wanted = { view, range, access, enforce: parameters.enforce, name };
  const newVolume = (): NewVolume => {
    const bytes = sizeFor(view, range);
    const other = otherNewFilesystem(wishes, view, bytes);
    if (other !== undefined) throw refuse(other);
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
    const other = await otherFilesystemOf(about, volume, wishes, call);
    if (other !== undefined) throw refuse(other);
  };
  return await about.underway(`create ${name}`, async () => {
    const stores = storesOf(about).map(({ config }) => config.name);
    const provisioning = { stores, want: newVolume, accept, acceptData };
    const { volume } = await about.core.provision(provisioning, { ...call, requestId: `csi:${name}` });
    return volume;
  });
}

function sizeFor(view: StoreView, { from, to }: Range): bigint | undefined {
  const usual = view.config.policy.defaultSize;
  if (from !== undefined) return from;
  if (usual === undefined && !enforcesSizes(view)) return undefined;
  const chosen = usual ?? usualBytes;
  return to !== undefined && chosen > to ? to : chosen;
}

interface Compared {
  readonly view: StoreView;
  readonly range: Range;
  readonly access: Volume['access'];
  readonly enforce: boolean | undefined;
  readonly name: string;
}

/** Only what was asked for counts: it may have been enlarged since. */
function requireCompatible(present: Volume, wanted: Compared): void {
  const isSame =
    present.store === wanted.view.config.name &&
    present.access === wanted.access &&
    isWithin(present.bytes, wanted.range) &&
    (wanted.enforce === undefined || present.enforce === wanted.enforce);
  if (!isSame) throw differs(present, wanted);
}

function differs(present: Volume, { name }: Compared): StowageError {
  const bytes = present.bytes === undefined ? 'no size' : formatSize(present.bytes);
  return new StowageError(
    `there is a volume ${quoted(name)} already: ${present.access}, on store '${present.store}', with ${bytes}`,
    {
      code: 'exists',
      reason: 'csi-volume-differs',
      action: 'Choose another name, or ask for it as it is.',
    },
  );
}

/** The store is here and nowhere else. */
function requireHere(about: About, requirement: TopologyRequirement | undefined): void {
  const wanted = requirement?.requisite ?? [];
  if (wanted.length === 0 || wanted.some(({ segments }) => isHere(about, segments))) return;
  throw new StowageError('the volume is wanted on other nodes than this one', {
    code: 'exhausted',
    reason: 'csi-other-node',
    action: 'Use a class with volumeBindingMode WaitForFirstConsumer, and allow the nodes that have such a store.',
  });
}

export const isHere = (about: About, segments: Readonly<Record<string, string>>): boolean =>
  Object.entries(topologyOf(about)).every(([key, value]) => segments[key] === undefined || segments[key] === value);
